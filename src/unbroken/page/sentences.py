"""What the sentences of a history are about, so that a page can mark them, and what the page itself notices.

The words are those of the protocol and the cluster; a sentence that is not known is a note, and shown all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from unbroken.page.snapshot import Sentence, Snapshot
from unbroken.protocol.values.ids import NodeId

KEPT = 300
"""Sentences that a page shows; nodes and ZooKeeper keep a few hundred, too."""

MARKS = 200
"""Marks on the time axis; more could not be told apart."""

TOGETHER_MS = 5_000
"""One failure is seen, suspected and decided upon within seconds: sentences of a kind this close make one mark."""

SAME_MS = 2_000
"""A node puts the same sentence into its own story and into the history, at two readings of its clock."""


class Kind(StrEnum):
    """What a sentence means for somebody who watches."""

    LOSS = "loss"
    DOUBT = "doubt"
    REPAIR = "repair"
    CHANGE = "change"
    NOTE = "note"


# The first pattern that is found decides.
_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (Kind.REPAIR, re.compile(r"is redundant again|caught up|holds a copy|hears \S+ again|has all its input again")),
    (Kind.REPAIR, re.compile(r"is back|answers again|back on \S+$|puts results after")),
    (Kind.LOSS, re.compile(r"\blost;|\blost, |lost its disk|no longer waiting for|given up as a whole|is dead\b")),
    (Kind.LOSS, re.compile(r"\bstops: |diverge|differs from the copy|given up: at-most-once|died and ")),
    (Kind.DOUBT, re.compile(r"\bsuspects\b|does not answer|is to be built again: |lacks input")),
    (Kind.DOUBT, re.compile(r"trying again|was not brought up to date|cannot be |too old to keep|not the controller")),
    (Kind.CHANGE, re.compile(r"drained|is built again|is placed on|are placed on|generation \d|is frozen|goes on")),
    (
        Kind.CHANGE,
        re.compile(r"asks for an ingress|takes over|delivers the results|upgrade|paused|resumed"),
    ),
)

_REDUNDANT = re.compile(r"is redundant again")
_BEGAN = re.compile(r"^first layout on ")


def kind_of(text: str) -> Kind:
    return next((kind for kind, pattern in _PATTERNS if pattern.search(text)), Kind.NOTE)


def restored_ms(sentences: Iterable[Sentence]) -> int | None:
    """When redundancy was last restored by what the history says, or else when the flow began; None if it is silent."""
    found: int | None = None
    for sentence in sentences:
        if _REDUNDANT.search(sentence.text) or (found is None and _BEGAN.search(sentence.text)):
            found = sentence.time_ms
    return found


@dataclass(frozen=True)
class Mark:
    """Something on the time axis: one or several sentences of a kind."""

    time_ms: int
    kind: Kind
    texts: tuple[str, ...]


def marks_of(sentences: Iterable[Sentence]) -> list[Mark]:
    """What is worth a mark, oldest first: losses, suspicions, and redundancy that is back."""
    out: list[Mark] = []
    last: dict[Kind, int] = {}
    for sentence in sentences:
        kind = kind_of(sentence.text)
        if kind not in (Kind.LOSS, Kind.DOUBT) and not (kind is Kind.REPAIR and _worth_a_mark(sentence.text)):
            continue
        place = last.get(kind)
        if place is not None and sentence.time_ms - out[place].time_ms <= TOGETHER_MS:
            texts = out[place].texts
            out[place] = replace(out[place], texts=texts if sentence.text in texts else (*texts, sentence.text))
            continue
        last[kind] = len(out)
        out.append(Mark(sentence.time_ms, kind, (sentence.text,)))
    return out[-MARKS:]


def _worth_a_mark(text: str) -> bool:
    return _REDUNDANT.search(text) is not None or text.endswith("is back")


@dataclass
class Chronicle:
    """Everything that happened, from the history, from the stories of the nodes, and from looking.

    A node that dies cannot say so, and the controller says it only when it has given the node up. Who looks once a
    second sees it at once; while ZooKeeper is away, the stories of the nodes are all there is.

    Invariant: sentences are in the order of their times, each of them once, and no more than ``KEPT``.
    """

    page: NodeId = "page"
    sentences: list[Sentence] = field(default_factory=list)
    _known: set[tuple[NodeId, str, int]] = field(default_factory=set)
    _seen: dict[NodeId, str] = field(default_factory=dict)
    _away: dict[NodeId, str] = field(default_factory=dict)

    def look(self, snapshot: Snapshot) -> None:
        """Take in what a snapshot tells."""
        told = [
            Sentence(int(entry["time_ms"]), str(state["node"]), str(entry["sentence"]))
            for state in snapshot.states
            for entry in state.get("story", ())
        ]
        fresh = [sentence for sentence in [*snapshot.history, *told] if self._is_new(sentence)]
        fresh += self._notice(snapshot)
        if not fresh:
            return
        self.sentences = sorted([*self.sentences, *fresh], key=lambda sentence: sentence.time_ms)[-KEPT:]
        self._known = {key for sentence in self.sentences for key in _keys(sentence)}

    def check(self) -> None:
        times = [sentence.time_ms for sentence in self.sentences]
        assert times == sorted(times), "the sentences are not in the order of their times"
        assert len(self.sentences) <= KEPT, "more sentences than are kept"

    def _is_new(self, sentence: Sentence) -> bool:
        oldest = self.sentences[0].time_ms if len(self.sentences) == KEPT else 0
        if sentence.time_ms < oldest or any(key in self._known for key in _keys(sentence)):
            return False
        self._known.update(_keys(sentence))
        return True

    def _notice(self, snapshot: Snapshot) -> list[Sentence]:
        """How nodes have changed since the last look, in sentences."""
        out: list[Sentence] = []
        for node, state in snapshot.by_node.items():
            is_now, was = str(state["state"]), self._seen.get(node, "")
            self._seen[node] = is_now
            text = self._change(node, was, is_now, str(state.get("reason") or "")) if was else None
            if text is not None:
                out.append(Sentence(snapshot.time_ms, self.page, text))
        for node in set(self._seen) - set(snapshot.by_node):
            del self._seen[node]
            self._away.pop(node, None)
        return out

    def _change(self, node: NodeId, was: str, is_now: str, reason: str) -> str | None:
        """What there is to say; a node that was away is back when it runs, not when it is being started."""
        if is_now == "running":
            return {"dead": f"{node} is back", "silent": f"{node} answers again"}.get(self._away.pop(node, ""))
        if is_now not in ("dead", "silent", "lost") or was == is_now:
            return None
        known = self._away.get(node, "")
        if known == "dead" or known == is_now:
            return None  # It is said once, in whatever way it is gone.
        self._away[node] = "silent" if is_now == "silent" else "dead"
        because = f": {reason}" if reason else ""
        if is_now == "silent":
            return f"{node} does not answer{because}"
        return (
            f"{node} is dead{because}" if is_now == "dead" else f"{node} is lost, {reason or 'nothing is heard of it'}"
        )


def _keys(sentence: Sentence) -> list[tuple[NodeId, str, int]]:
    """What a sentence is recognised by when it is told a second time a moment later."""
    bucket = sentence.time_ms // SAME_MS
    return [(sentence.node, sentence.text, bucket), (sentence.node, sentence.text, bucket + 1)]
