"""Whether this process was started by spark-submit, and what that was told.

spark-submit starts the JVM first, with memory, ports and class path as it was told, and then Python beside it. So all
that concerns resources and where things run is spark-submit's to say. What results and state depend on is the flow's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from unbroken.errors import UnbrokenError

GATEWAY = "PYSPARK_GATEWAY_PORT"

OF_THE_FLOW = "spark.sql."
"""Settings of this kind have to be the same on every node: a replica would differ, or could not read copied state."""

DEPLOY_MODE = "spark.submit.deployMode"


def is_submitted() -> bool:
    return GATEWAY in os.environ


def submitted_settings() -> dict[str, str]:
    """All settings that spark-submit brought, from its command line and its file of defaults; none without it."""
    if not is_submitted():
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def chosen(given: Mapping[str, str]) -> dict[str, str]:
    """Those of the given settings that hold, whatever a node would have set itself."""
    if given.get(DEPLOY_MODE, "client") != "client":
        raise UnbrokenError(
            f"a node cannot run in Spark's deploy mode {given[DEPLOY_MODE]!r}: it has a name, a disk and an address of "
            "its own, on a machine that you choose. Submit it with --deploy-mode client on that machine."
        )
    return {key: value for key, value in given.items() if not key.startswith(OF_THE_FLOW) and key != "spark.app.name"}
