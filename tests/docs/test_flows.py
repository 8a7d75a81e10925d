"""The flows of the documentation pass the same checks as in ``unbroken check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from docs import yaml_blocks
from docs.pages import pages_with
from docs.python_blocks import run_python
from unbroken.flow.plan import build_topology
from unbroken.spark.analysis.analysis import analyse
from unbroken.spark.analysis.horizon import settled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("page", pages_with("python", "yaml"))
def test_flows_can_be_run(page: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flows = [*run_python(page, monkeypatch, tmp_path), *yaml_blocks.networks(page, tmp_path)]
    for flow in flows:
        topology = build_topology(flow)
        settled(topology, analyse(flow, tuple(topology.segments), spark).horizons)
