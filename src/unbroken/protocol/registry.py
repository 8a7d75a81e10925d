"""The registry of policies: one line for each, and nothing else in the kernel knows of it.

A policy is a package of ``unbroken.protocol.policies`` with a function ``build``, which makes it for a node. If it
has a say in where replicas are, it has a ``PLACEMENT``; if it has messages, events or instructions of its own, it
declares them, and the interface that carries them out, in its ``VOCABULARY``. A shell has a module or package of the
same name for each policy with instructions, or with an offer to another part of the shell. A policy's line here
declares what is true of every flow that uses it, so that code which has no policy at hand asks for a property instead
of a name. To remove a policy, remove its packages and its line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from unbroken.protocol.vocabulary import PolicyEffects, PolicyEvent, PolicyInstruction, PolicyMessage

Kind = TypeVar("Kind", PolicyMessage, PolicyEvent, PolicyInstruction, PolicyEffects)


class Backups(Enum):
    """What the backups of a segment do while all is well.

    PROCESS: the same input as the first replica. HOLD: nothing, with a copy of its state. SPARE: nothing, as nodes that
    can take its place. NONE: there are none.
    """

    PROCESS = "process"
    HOLD = "hold"
    SPARE = "spare"
    NONE = "none"


@dataclass(frozen=True)
class Registered:
    """A policy's line: its package, and what is true of the flows that use it.

    - ``needs``: the policies that it is built on.
    - ``backups``: for a strategy, what they do.
    - ``rebuilds``: state is rebuilt from recent input, so the horizon of a segment has to be known.
    - ``numbered``: units are numbered by the pulses that they complete.
    - ``separate``: sources are cut each by itself, not all with a pulse.
    - ``together``: a node has all shards of the flow or none, and they are copied at once.
    - ``settings``: those of the flow that its units hang on.
    - ``fixed``: why the code of a running flow cannot be replaced, and what to do instead.
    """

    package: str
    needs: tuple[str, ...] = ()
    backups: Backups = Backups.NONE
    rebuilds: bool = False
    numbered: bool = True
    separate: bool = False
    together: bool = False
    settings: tuple[str, ...] = ()
    fixed: tuple[str, str] | None = None


KERNEL = {"active": Registered("", backups=Backups.PROCESS), "none": Registered("")}
"""The strategies that need no policy."""

POLICIES = {
    "active-standby": Registered("active_standby", backups=Backups.PROCESS),
    "at-most-once": Registered("at_most_once"),
    "passive": Registered("passive_standby", backups=Backups.HOLD),
    "upstream": Registered("upstream_backup", backups=Backups.SPARE, rebuilds=True),
    "sharing": Registered("load_sharing"),
    "cluster": Registered(
        "cluster_pairs",
        together=True,
        fixed=(
            "with pairs='cluster' code cannot be replaced while the flow runs: that takes replicas that come alone",
            "stop the flow and start it afresh, or run it with pairs='partition'",
        ),
    ),
    "leader": Registered(
        "leader",
        numbered=False,
        settings=("order_log",),
        fixed=(
            "the code of a flow in which leaders order the input cannot be replaced while it runs",
            "stop the flow and restart it with the other file",
        ),
    ),
    "bucket": Registered(
        "bucket",
        needs=("fork",),
        numbered=False,
        separate=True,
        settings=("bucket", "bucket_origin"),
        fixed=(
            "the code of a flow whose units are buckets of event time cannot be replaced while it runs",
            "stop the flow and restart it with the other file",
        ),
    ),
    "fork": Registered("fork"),
    "redo": Registered("redo", needs=("fork",)),
    "undo": Registered("undo", needs=("fork",), rebuilds=True),
}
"""The policies by the names that users give them, in the order in which they are asked."""


def registered(name: object) -> Registered:
    """The line of a policy, or of a strategy that needs none; nothing is known of one that is not installed, or of
    anything else that a user may have written instead."""
    found = POLICIES.get(name) or KERNEL.get(name) if isinstance(name, str) else None
    return found or Registered("")


@cache
def package(name: str) -> Any:
    """The package of a policy."""
    return import_module(f"unbroken.protocol.policies.{POLICIES[name].package}")


def having(attribute: str) -> list[Any]:
    """What the policies offer under this name, for those that do."""
    packages = [package(name) for name in POLICIES]
    return [getattr(found, attribute) for found in packages if hasattr(found, attribute)]


def declared(kind: type[Kind]) -> list[type[Kind]]:
    """The messages, events, instructions or interfaces that the policies declare."""
    return [word for words in having("VOCABULARY") for word in words if issubclass(word, kind)]


def counterparts(parent: str) -> list[Any]:
    """The modules of the package ``parent``, a part of a shell, for the policies with instructions of their own."""
    packages = [package(name) for name in POLICIES]
    having_effects = [
        found for found in packages if any(issubclass(word, PolicyEffects) for word in getattr(found, "VOCABULARY", ()))
    ]
    return [import_module(f"{parent}.{found.__name__.rpartition('.')[2]}") for found in having_effects]


def offered(parent: str, attribute: str) -> list[Any]:
    """What the modules of ``parent``, a part of a shell, offer under this name, for the policies that have one."""
    names = [f"{parent}.{line.package}" for line in POLICIES.values()]
    modules = [import_module(name) for name in names if find_spec(name) is not None]
    return [getattr(module, attribute) for module in modules if hasattr(module, attribute)]
