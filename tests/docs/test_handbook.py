"""The handbook explains every state, every line of the status and every kind of notice."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from docs.pages import text_of
from unbroken.observe.notices import TABLE
from unbroken.observe.notices import text_of as sentence_of
from unbroken.observe.status.flow import PartKind, ShortShard, StuckPart
from unbroken.observe.status.node import NodeState
from unbroken.observe.status.summary import in_words, summarize
from unbroken.protocol.repair.catchup import Phase
from unbroken.protocol.values.consistency import Consistency
from unbroken.protocol.values.notices import UnknownNotice, known_kinds

HANDBOOK = text_of("docs/handbook.md")


@pytest.mark.parametrize("kind", sorted(set(known_kinds()) - {UnknownNotice.kind}))
def test_every_kind_of_notice_is_explained(kind: str) -> None:
    """The tables are made by `make reference` from the words of each kind, which no kind can lack."""
    words = TABLE[known_kinds()[kind]]
    (row,) = [line for line in HANDBOOK.splitlines() if line.startswith(f"| `{kind}` | ")]
    assert f"| {known_kinds()[kind].usual_severity.value} |" in row and words.meaning in row and words.remedy in row
    assert all(sentence_of(example).replace("|", "\\|") in row for example in words.examples)


def test_every_line_of_the_status_is_explained() -> None:
    empty = summarize([])
    full = replace(
        empty,
        known=True,
        short=(ShortShard(shard="s.0", wanted=2, there=1, joining=1, missing=0),),
        latency_ms=1.0,
        gap_ms=1.0,
        tentative={"s.0": ("west",)},
        stopped={"s.0#1": "why"},
        stuck=(StuckPart(kind=PartKind.INGRESS, node="a", why="why"),),
        divergences=1,
        layout=1,
        generation=1,
    )
    labels = {line.partition(":")[0] for line in in_words(full, 1000.0)}
    glance = HANDBOOK.partition("\n### At a glance\n")[2].partition("\n### ")[0]
    assert len(labels) == 8 and not [label for label in labels if f"`{label}: " not in glance]


def test_every_state_is_explained() -> None:
    states = [one.value for kind in (Phase, Consistency, NodeState) for one in kind]
    states += ["active", "stands by", "holds a copy", "leads the pulse", "follows"]
    assert not [state for state in states if f"`{state}`" not in HANDBOOK]
