"""The vocabulary of faults: small values that name what is done to a flow, to which node, when, and for how long.

Test kit, fault campaigns, demonstration, benchmarks and system tests use these values, and `Executor` does them.

A fault happens at a moment in the data (``at_unit``, ``at_row``, ``at_mark``) or some time after the first result
(``after_s``). At a moment in the data the source stands still until the fault has happened, so that the same rows are
before it and behind it in every run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from unbroken.errors import UnbrokenError

ZOOKEEPER = "zookeeper"
"""What ZooKeeper is called where a node could be named."""

EVERYTHING = "everything"
"""All nodes and ZooKeeper, for `Restart`."""

LEADER = "leader"
"""The node that leads the ingress, whichever it is at that moment."""

REPLICA_OF = "replica of "
"""Before the name of a segment or shard: a node with a replica of it."""

MOMENTS = ("at_unit", "at_row", "at_mark", "after_s")

NodeRef = int | str
"""A node by number (1), by name (``"node-1"``, ``"standby-1"``) or by role: ``"leader"``, ``"replica of x"``."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that goes wrong, at one of four moments.

    Parameters
    ----------
    at_unit
        When the sources have been cut so many times, before they are cut again.
    at_row
        When a source has been cut behind so many of its rows; which source, if there are several, says ``source``.
    at_mark
        When a source has been cut up to the `mark` of this name in its rows.
    after_s
        So many seconds after the first result.
    when_whole
        Wait, at that moment, until every shard has all its replicas (again). A second fault needs that if it would
        otherwise hit the only copy that is left. Those whose ``after_s`` is later are put off by as long.
    """

    at_unit: int | None = None
    at_row: int | None = None
    at_mark: str | None = None
    after_s: float | None = None
    source: str | None = None
    when_whole: bool = False

    @property
    def moment(self) -> str | None:
        """Which of the moments it is; None for one that stands in the data itself."""
        return next((name for name in MOMENTS if getattr(self, name) is not None), None)

    def problems(self) -> list[str]:
        """What is wrong with it, each as a sentence with a remedy."""
        given = [name for name in MOMENTS if getattr(self, name) is not None]
        found = []
        if len(given) > 1:
            found.append(f"{self}: {' and '.join(given)} are two moments; give one of them")
        found += [f"{self}: {name} must be a number, 0 or more" for name in ("at_row", "after_s") if self._bad(name, 0)]
        if self._bad("at_unit", 1):
            found.append(f"{self}: units are counted from 1; give at_unit=1 or more")
        return found + [f"{self}: {name} must be above 0" for name in ("for_s", "back_after_s") if self._bad(name, 0.0)]

    def timed(self) -> str:
        """What happens, without when."""
        return str(replace(self, **dict.fromkeys((*MOMENTS, "source"), None), when_whole=False))

    def targets(self) -> tuple[NodeRef, ...]:
        """The nodes that it is about."""
        return ()

    def _bad(self, name: str, least: float) -> bool:
        value = getattr(self, name, None)
        if value is None:
            return False
        if isinstance(value, bool) or not isinstance(value, int if name in ("at_unit", "at_row") else int | float):
            return True
        return not least <= value < float("inf") or (isinstance(least, float) and value <= 0)

    def to_json(self) -> dict[str, Any]:
        """The kind, and everything that was not left out."""
        given = {
            each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default
        }
        return {"kind": type(self).__name__, **given}

    def __str__(self) -> str:
        """As it was written, without what was left out."""
        given = [(each.name, getattr(self, each.name), each.default) for each in fields(self)]
        # What is done comes before when, although the fields of the base class come first.
        given.sort(key=lambda entry: entry[0] in Fault.__dataclass_fields__)
        written = ", ".join(f"{name}={value!r}" for name, value, default in given if value != default)
        return f"{type(self).__name__}({written})"


@dataclass(frozen=True)
class Kill(Fault):
    """kill -9 of a node, or of ``"zookeeper"``.

    With ``back_after_s`` it is restarted so many seconds later, on what its disk holds. ZooKeeper is always restarted,
    after a second if nothing else is specified: without it no node would ever be replaced. With ``jvm`` only the JVM of
    the node's Spark is killed.
    """

    node: NodeRef
    back_after_s: float | None = None
    jvm: bool = False

    def targets(self) -> tuple[NodeRef, ...]:
        return (self.node,)


@dataclass(frozen=True)
class Freeze(Fault):
    """A node, or ``"zookeeper"``, does nothing for ``for_s`` seconds and keeps its connections, as in a long pause.

    With ``jvm`` only the JVM of the node's Spark is frozen.
    """

    node: NodeRef
    for_s: float
    jvm: bool = False

    def targets(self) -> tuple[NodeRef, ...]:
        return (self.node,)


@dataclass(frozen=True)
class Restart(Fault):
    """A node ends as it is asked to (SIGTERM) and is restarted at once on what its disk holds.

    ``"everything"`` is a power failure instead: all nodes and ZooKeeper are killed, and restarted on their disks.
    """

    node: NodeRef

    def targets(self) -> tuple[NodeRef, ...]:
        return (self.node,)


@dataclass(frozen=True)
class Wipe(Fault):
    """kill -9 of a node whose disk is lost with it; it is restarted at once, on an empty one."""

    node: NodeRef

    def targets(self) -> tuple[NodeRef, ...]:
        return (self.node,)


@dataclass(frozen=True)
class DiskFull(Fault):
    """The disk of a node has no space for ``for_s`` seconds, whatever is deleted on it.

    The directory of every node is a small file system of its own then, which needs Linux and root.
    """

    node: NodeRef
    for_s: float

    def targets(self) -> tuple[NodeRef, ...]:
        return (self.node,)


@dataclass(frozen=True)
class SlowDisk(Fault):
    """For ``for_s`` seconds, data that a node forces to its disk arrive there ``delay_ms`` milliseconds late.

    The node's own files are meant: ingress log, units, copies of state. Spark's JVM writes as quickly as before.
    """

    node: NodeRef
    for_s: float
    delay_ms: float

    def targets(self) -> tuple[NodeRef, ...]:
        return (self.node,)

    def problems(self) -> list[str]:
        return super().problems() + ([f"{self}: delay_ms must be above 0"] if self._bad("delay_ms", 0.0) else [])


@dataclass(frozen=True)
class ClockStep(Fault):
    """The clock of a node is set: ``by_s`` seconds ahead, or back if that is negative.

    It is corrected after ``for_s`` seconds, if given. The time of day of the node's own process is meant; the clock of
    the machine and of Spark's JVM, which no segment may read, stay as they are.
    """

    node: NodeRef
    by_s: float
    for_s: float | None = None

    def targets(self) -> tuple[NodeRef, ...]:
        return (self.node,)

    def problems(self) -> list[str]:
        found = super().problems()
        steps = not isinstance(self.by_s, bool) and isinstance(self.by_s, int | float)
        if not steps or not 0 < abs(self.by_s) < float("inf"):
            found.append(f"{self}: by_s must be a number of seconds other than 0")
        return found


@dataclass(frozen=True)
class Partition(Fault):
    """Nothing passes between two nodes for ``for_s`` seconds, in neither direction; connections stay open.

    ``b`` may be ``"zookeeper"``, or left out: then ``a`` is cut from everybody else.
    """

    a: NodeRef
    b: NodeRef | None = None
    for_s: float = field(kw_only=True)

    def targets(self) -> tuple[NodeRef, ...]:
        return (self.a,) if self.b is None else (self.a, self.b)

    def problems(self) -> list[str]:
        found = super().problems()
        if self.a == self.b:
            found.append(f"{self}: a node cannot be cut from itself; name two")
        return found


@dataclass(frozen=True)
class SourceFails(Fault):
    """A source cannot be asked or read for ``for_s`` seconds, as if its server were away; ``name`` says which."""

    name: str
    for_s: float


KINDS: dict[str, type[Fault]] = {
    kind.__name__: kind for kind in (Kill, Freeze, Restart, Wipe, Partition, DiskFull, SlowDisk, ClockStep, SourceFails)
}
"""The whole vocabulary, by name."""


def refuse_bad(faults: Iterable[Any]) -> tuple[Fault, ...]:
    """The faults, if all of them can be done; raises UnbrokenError with all that is wrong with them."""
    checked = tuple(faults)
    found: list[str] = []
    for fault in checked:
        if not isinstance(fault, Fault) or type(fault) is Fault:
            found.append(f"{fault!r} is no fault; use one of {', '.join(KINDS)}")
        else:
            found += fault.problems()
            if fault.moment is None:
                found.append(f"{fault}: say when, with at_unit, at_row, at_mark or after_s")
    if found:
        raise UnbrokenError("\n".join(found))
    return checked
