"""What happened to a flow, as the page shows it: reports of the nodes, and what the page itself notices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from unbroken.observe.notices import text_of
from unbroken.observe.status.notices import reports_of
from unbroken.page.document import TimelineMark
from unbroken.page.snapshot import FlowSnapshot
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.notices import Effect, Notice, Reported
from unbroken.protocol.values.notices.placement import FirstLayout, FlowRedundant, ShardRedundant
from unbroken.protocol.values.notices.processes import NodeBack, NodeDead, NodeGone, NodeSilent

KEPT = 300
"""Notices that a page shows; nodes and ZooKeeper keep a few hundred, too."""

MARKS = 200
"""Marks on the time axis; more could not be told apart."""

TOGETHER_MS = 5_000
"""One failure is seen, suspected and decided upon within seconds: notices of an effect this close make one mark."""

SAME_MS = 2_000
"""A node puts the same notice into its own story and into the history, at two readings of its clock."""


def restored_ms(reports: Iterable[Reported]) -> int | None:
    """When redundancy was last restored by what the history says, or else when the flow began; None if it is silent."""
    found: int | None = None
    for reported in reports:
        if _restores(reported.notice) or (found is None and isinstance(reported.notice, FirstLayout)):
            found = reported.time_ms
    return found


def _restores(notice: Notice) -> bool:
    return isinstance(notice, FlowRedundant) or (isinstance(notice, ShardRedundant) and notice.again)


def marks_of(reports: Iterable[Reported]) -> list[TimelineMark]:
    """What is worth a mark, oldest first: losses, suspicions, and redundancy that is restored."""
    out: list[TimelineMark] = []
    last: dict[Effect, int] = {}
    for reported in reports:
        notice, effect = reported.notice, reported.notice.effect
        if effect not in (Effect.LOSS, Effect.DOUBT) and not _worth_a_mark(notice):
            continue
        place, text = last.get(effect), text_of(notice)
        if place is not None and reported.time_ms - out[place].time_ms <= TOGETHER_MS:
            texts = out[place].texts
            out[place] = replace(out[place], texts=texts if text in texts else (*texts, text))
            continue
        last[effect] = len(out)
        out.append(TimelineMark(reported.time_ms, effect, (text,)))
    return out[-MARKS:]


def _worth_a_mark(notice: Notice) -> bool:
    """Whether a repair is."""
    return _restores(notice) or (isinstance(notice, NodeBack) and not notice.silent)


@dataclass
class Chronicle:
    """Everything that happened, from the history, from the stories of the nodes, and from looking.

    A node that dies cannot report it, and the controller does only when it has dropped the node. A page that looks once
    a second sees it at once; while ZooKeeper is unavailable, the stories of the nodes are all there is.

    Invariant: reports are in the order of their times, each of them once, and no more than ``KEPT``.
    """

    page: NodeId = "page"
    reports: list[Reported] = field(default_factory=list)
    _known: set[tuple[NodeId, Notice, int]] = field(default_factory=set)
    _seen: dict[NodeId, str] = field(default_factory=dict)
    _away: dict[NodeId, str] = field(default_factory=dict)

    def look(self, snapshot: FlowSnapshot) -> None:
        """Take in what a snapshot tells."""
        told = [reported for state in snapshot.states for reported in reports_of(state)]
        fresh = [reported for reported in [*snapshot.history, *told] if self._is_new(reported)]
        fresh += self._notice(snapshot)
        if not fresh:
            return
        self.reports = sorted([*self.reports, *fresh], key=lambda reported: reported.time_ms)[-KEPT:]
        self._known = {key for reported in self.reports for key in _keys(reported)}

    def check(self) -> None:
        times = [reported.time_ms for reported in self.reports]
        assert times == sorted(times), "the reports are not in the order of their times"
        assert len(self.reports) <= KEPT, "more reports than are kept"

    def _is_new(self, reported: Reported) -> bool:
        oldest = self.reports[0].time_ms if len(self.reports) == KEPT else 0
        if reported.time_ms < oldest or any(key in self._known for key in _keys(reported)):
            return False
        self._known.update(_keys(reported))
        return True

    def _notice(self, snapshot: FlowSnapshot) -> list[Reported]:
        """How nodes have changed since the last look."""
        out: list[Reported] = []
        for node, state in snapshot.by_node.items():
            is_now, was = state.state.value, self._seen.get(node, "")
            self._seen[node] = is_now
            change = self._change(node, was, is_now, state.reason or "") if was else None
            if change is not None:
                out.append(Reported(snapshot.time_ms, self.page, change))
        for node in set(self._seen) - set(snapshot.by_node):
            del self._seen[node]
            self._away.pop(node, None)
        return out

    def _change(self, node: NodeId, was: str, is_now: str, reason: str) -> Notice | None:
        """What there is to report; a node that was unavailable is back when it runs, not when it is being started."""
        if is_now == "running":
            away = self._away.pop(node, "")
            return NodeBack(node, silent=away == "silent") if away else None
        if is_now not in ("dead", "silent", "lost") or was == is_now:
            return None
        known = self._away.get(node, "")
        if known == "dead" or known == is_now:
            return None  # It is reported once, in whatever way it is gone.
        self._away[node] = "silent" if is_now == "silent" else "dead"
        kinds: dict[str, type[NodeDead | NodeGone | NodeSilent]] = {
            "dead": NodeDead,
            "lost": NodeGone,
            "silent": NodeSilent,
        }
        return kinds[is_now](node, reason)


def _keys(reported: Reported) -> list[tuple[NodeId, Notice, int]]:
    """What a report is recognised by when it comes a second time a moment later."""
    bucket = reported.time_ms // SAME_MS
    return [(reported.node, reported.notice, bucket), (reported.node, reported.notice, bucket + 1)]
