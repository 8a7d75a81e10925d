"""A session that starts with an archive of Spark's classes, created by the command for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

SESSION = """
from unbroken.flow.settings import Settings
from unbroken.spark.session import start_session

session = start_session("archived", Settings(spark={"spark.driver.extraJavaOptions": "-Xlog:class+load:file=LOG"}))
print(session.range(10).count())
"""


def test_classes_come_from_the_archive(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=280)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    made = json.loads(run("-m", "unbroken", "prepare", "--json"))
    assert made["created"] and Path(made["file"]).is_file()
    assert not json.loads(run("-m", "unbroken", "prepare", "--json"))["created"]

    log = tmp_path / "classes.log"
    assert run("-c", SESSION.replace("LOG", str(log))).strip() == "10"
    spark = [line for line in log.read_text().splitlines() if " org.apache.spark." in line]
    archived = [line for line in spark if "shared objects file (top)" in line]
    assert len(archived) > len(spark) / 2, f"{len(archived)} of {len(spark)} classes of Spark"
