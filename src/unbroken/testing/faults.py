"""What can be done to a flow in a test, and when: a table of small values that know nothing of processes.

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

LEADER = "leader"
"""The node that leads the ingress, whichever it is at that moment."""

REPLICA_OF = "replica of "
"""Before the name of a segment or shard: a node with a replica of it."""

MOMENTS = ("at_unit", "at_row", "at_mark", "after_s")

Node = int | str
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
        otherwise hit the only copy that is left.
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

    def targets(self) -> tuple[Node, ...]:
        """The nodes that it is about."""
        return ()

    def _bad(self, name: str, least: float) -> bool:
        value = getattr(self, name, None)
        if value is None:
            return False
        if isinstance(value, bool) or not isinstance(value, int if name in ("at_unit", "at_row") else int | float):
            return True
        return not least <= value < float("inf") or (isinstance(least, float) and value <= 0)

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

    With ``back_after_s`` it is started again so many seconds later, on what its disk holds. ZooKeeper is always
    started again, after a second if nothing is said: without it no node would ever be replaced.
    """

    node: Node
    back_after_s: float | None = None

    def targets(self) -> tuple[Node, ...]:
        return (self.node,)


@dataclass(frozen=True)
class Freeze(Fault):
    """A node, or ``"zookeeper"``, does nothing for ``for_s`` seconds and keeps its connections, as in a long pause."""

    node: Node
    for_s: float

    def targets(self) -> tuple[Node, ...]:
        return (self.node,)


@dataclass(frozen=True)
class Partition(Fault):
    """Nothing passes between two nodes for ``for_s`` seconds, in neither direction; connections stay open.

    ``b`` may be ``"zookeeper"``, or left out: then ``a`` is cut from everybody else.
    """

    a: Node
    b: Node | None = None
    for_s: float = field(kw_only=True)

    def targets(self) -> tuple[Node, ...]:
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


def refuse_bad(faults: Iterable[Any]) -> tuple[Fault, ...]:
    """The faults, if all of them can be done; raises UnbrokenError with all that is wrong with them."""
    checked = tuple(faults)
    found: list[str] = []
    for fault in checked:
        if not isinstance(fault, Fault) or type(fault) is Fault:
            found.append(f"{fault!r} is no fault; use Kill, Freeze, Partition or SourceFails")
        else:
            found += fault.problems()
            if fault.moment is None:
                found.append(f"{fault}: say when, with at_unit, at_row, at_mark or after_s")
    if found:
        raise UnbrokenError("\n".join(found))
    return checked
