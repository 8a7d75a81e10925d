"""Faults by hand, for demonstrations: kill or freeze a node of a run of this host."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import psutil

from unbroken.coordination.run_info import RunInfo
from unbroken.errors import Refused, UnbrokenError, Unreachable
from unbroken.local.guardian import session_members

GONE_DEADLINE_S = 10.0
"""How long a killed process may take to disappear: it may be in the middle of a large write."""


def local_nodes(directory: Path) -> dict[str, psutil.Process]:
    """The processes of a local run's nodes, by name.

    They are known by their command line, which has the node's directory in it: whoever else has got the number of a
    process that ended is never touched. Raises Unreachable if the run's owner does not live on this host.
    """
    info = RunInfo.read(directory)
    if info.pid is None or not psutil.pid_exists(info.pid):
        raise Unreachable(f"{directory} is not that of a run on this host that goes on; start it with `unbroken run`")
    home = directory.resolve()
    found: dict[str, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            name = node_of(words, home)
            # A node leads a session of its own; what it has forked may look like it.
            if name is not None and os.getsid(process.pid) == process.pid and _there(process):
                found[name] = process
    return found


def node_of(words: list[str], home: Path) -> str | None:
    """The name of the node that a command line starts, if it is one of the run in ``home``."""
    options = dict(pairwise(words))
    name, place = options.get("--name"), options.get("--dir")
    # Its guardian has the same words, but not in this place.
    starts = words[1:4] == ["-m", "unbroken", "node"] or [Path(word).name for word in words[1:3]] == [
        "unbroken",
        "node",
    ]
    if not starts or name is None or place is None:
        return None
    return name if Path(place) == home / name else None


def find_node(directory: Path, node: str) -> psutil.Process:
    """The process of one of them."""
    found = local_nodes(directory)
    if node not in found:
        raise Refused(f"no process of {node} runs here; nodes of this run: {', '.join(sorted(found)) or 'none'}")
    return found[node]


def kill(process: psutil.Process) -> None:
    """SIGKILL the node and nothing else, as a fault would; what it leaves, its guardian clears up."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
    deadline = time.monotonic() + GONE_DEADLINE_S
    while _there(process):
        if time.monotonic() > deadline:
            raise UnbrokenError(f"process {process.pid} was killed and has not ended within {GONE_DEADLINE_S:g} s")
        time.sleep(0.02)


def freeze(process: psutil.Process) -> None:
    """Stop the node and its descendants: they keep their connections and do nothing."""
    _signal(process, signal.SIGSTOP)


def thaw(process: psutil.Process) -> None:
    """Let a frozen node go on."""
    _signal(process, signal.SIGCONT)


def frozen(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    for pid in session_members(process.pid):
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _there(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
