"""Marks between the rows of a test's input: places where a unit ends and something happens.

    [{"user": "ann"}, {"user": "bob"}, kill_here("leader"), {"user": "ann"}, pause_here(ms=500), {"user": "cid"}]

Marks are no rows. When the source has been cut up to one, the source stands still until what the mark asks for has
happened; so what is before a mark and what is behind it is the same in every run.
"""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.errors import UnbrokenError
from unbroken.testing.faults import Fault, Kill, NodeRef


@dataclass(frozen=True)
class Mark:
    """A place between rows; made by `mark`, `kill_here` and `pause_here`.

    ``name`` is what ``at_mark`` of faults refers to, ``fault`` what happens here. The source has no rows for ``ms``
    milliseconds or for so many ``units``, while its flow goes on with units that are empty.
    """

    name: str | None = None
    fault: Fault | None = None
    ms: float = 0
    units: int = 0


def mark(what: str | Fault | None = None) -> Mark:
    """End a unit here; with a name, so that faults can refer to it, or with a fault that happens here.

    Examples
    --------
    >>> [row, mark("half"), row]  # and faults=[Freeze(2, for_s=3, at_mark="half")]
    >>> [row, mark(Partition(1, 2, for_s=3)), row]
    """
    if what is None or isinstance(what, str):
        return Mark(name=what)
    if not isinstance(what, Fault) or type(what) is Fault:
        raise UnbrokenError(f"mark({what!r}): give it a name or a fault such as Kill(1)")
    if what.moment is not None:
        raise UnbrokenError(f"mark({what}): it happens where the mark is; leave out {what.moment}")
    if problems := what.problems():
        raise UnbrokenError("\n".join(problems))
    return Mark(fault=what)


def kill_here(node: NodeRef = "leader", *, back_after_s: float | None = None, when_whole: bool = False) -> Mark:
    """kill -9 of a node when the source has been cut up to here; by default of the one that leads the ingress."""
    return mark(Kill(node, back_after_s, when_whole=when_whole))


def pause_here(ms: float = 0, *, units: int = 0) -> Mark:
    """The source has nothing for ``ms`` milliseconds, or for so many ``units``; the flow goes on without rows.

    How many units pass in a number of milliseconds depends on the machine; a number of units is the same everywhere.
    """
    if isinstance(ms, bool) or not isinstance(ms, int | float) or not 0 <= ms < float("inf"):
        raise UnbrokenError(f"pause_here(ms={ms!r}): give milliseconds, such as pause_here(500)")
    if isinstance(units, bool) or not isinstance(units, int) or units < 0:
        raise UnbrokenError(f"pause_here(units={units!r}): give a number of units, such as pause_here(units=3)")
    if bool(ms) == bool(units):
        raise UnbrokenError("pause_here: say for how long, either in ms or in units, such as pause_here(500)")
    return Mark(ms=ms, units=units)
