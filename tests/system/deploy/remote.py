"""Two nodes whose tasks run in the executors of a Spark cluster: one is started by itself, one by spark-submit."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pyspark

from kit.places import ROOT
from unbroken.local.launcher import LocalCluster
from unbroken.local.processes import spawn
from unbroken.local.spark_cluster import StandaloneCluster
from unbroken.spark.java import java_environment

SUBMITTED = "node-2"
"""The node that spark-submit starts."""

LAUNCHER = ROOT / "deploy" / "spark-submit" / "node.py"


class RemoteCluster(LocalCluster):
    """Nodes of a flow with a Spark master."""

    master = ""

    def start_node(self, name: str, standby: bool = False) -> None:
        self._told_dead.discard(name)
        options = [
            *("--name", name, "--flow", str(self.flow_file), "--zookeeper", self.zookeeper.address),
            *("--dir", str(self.directory / name), "--token-file", str(self.directory / "token")),
        ]
        environment = {**os.environ, **java_environment(), "PYSPARK_PYTHON": sys.executable}
        if name == SUBMITTED:
            home = Path(pyspark.__file__).parent
            settings = ["--driver-memory", "600m", "--conf", "spark.log.level=WARN"]
            command = [str(home / "bin" / "spark-submit"), "--master", self.master, *settings, str(LAUNCHER), *options]
            environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        else:
            command = [sys.executable, "-m", "unbroken", "node", *options, "--spark-master", self.master]
        self.nodes[name] = spawn(command, log_file=self.logs / f"{name}.log", env=environment)


def registered(spark: StandaloneCluster) -> int:
    """How many workers the master has known since it was started."""
    log = spark.processes["master"].log_file
    return len(re.findall("Registering worker", log.read_text())) if log.exists() else 0
