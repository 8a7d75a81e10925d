"""The flow of the chaos campaigns, set up for cases one by one: single delivery, one shard per segment, snapshots.

With one shard per segment four nodes hold a pair of producers and a pair of consumers that share one node at most.
Environment: that of ``unbroken_lab.chaos.flow``, and UNBROKEN_RECOVERY_SNAPSHOTS (directory of the snapshots).
"""

from __future__ import annotations

import os
import runpy
from dataclasses import replace
from pathlib import Path

import unbroken_lab.chaos

flow = runpy.run_path(str(Path(unbroken_lab.chaos.__file__).with_name("flow.py")))["flow"]
flow.segments["keys"] = replace(flow.segments["keys"], shards=1, shard_by={})
flow.settings = flow.settings.model_copy(
    update={
        "nodes": 4,
        "delivery": "single",
        # Four nodes on a small machine: longer pulses are less work, so that newcomers catch up soon.
        "pulse_min": 1_500.0,
        "catch_up_lag": 4,
        # A busy machine must not make consumers turn to another producer: tests say when that happens.
        "patience": 15_000.0,
        "link_timeout": 8_000.0,
        "snapshots": os.environ.get("UNBROKEN_RECOVERY_SNAPSHOTS", "recovery-snapshots"),
        "snapshot_every": 6_000.0,
        # Snapshots and copies contain what is kept for clients: hundreds of files that no case needs.
        "client_retain": 100,
    }
)
