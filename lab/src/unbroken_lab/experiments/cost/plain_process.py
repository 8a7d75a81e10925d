"""Running ``cost.plain`` as a process of its own, so that its Spark is as alone as that of a node."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from unbroken.errors import UnbrokenError
from unbroken.local.processes import spawn, tail
from unbroken.spark.java import java_environment

START_S = 60
"""Time that Spark may take to start and stop around a measurement."""

Taken = tuple[float, int, int]
"""A micro-batch that was completed: when in s, rows of input so far, time of its cut in ms."""


def plain_process(workload: str, rate: int, rows: int, batch: int, deadline_s: int) -> list[Taken]:
    """Measure plain Structured Streaming until it has taken ``rows``, or for ``deadline_s`` if that comes first."""
    environment = {**os.environ, **java_environment(), "PYSPARK_PYTHON": sys.executable}
    with tempfile.TemporaryDirectory() as directory:
        measured, log_file = Path(directory) / "samples.json", Path(directory) / "plain.log"
        numbers = [str(value) for value in (rate, rows, batch, deadline_s)]
        command = [sys.executable, "-m", "unbroken_lab.experiments.cost.plain", workload, *numbers, str(measured)]
        process = spawn(command, log_file=log_file, env=environment)
        try:
            code = process.wait(deadline_s + START_S)
        finally:
            process.stop(0)
        if code != 0:
            how = "did not end in time" if code is None else f"ended with code {code}"
            raise UnbrokenError(f"plain Structured Streaming {how}; the end of its log:\n{tail(log_file)}")
        return [(float(at), int(count), int(cut_ms)) for at, count, cut_ms in json.loads(measured.read_text())]
