"""The handbook explains every state and every sentence that there is, and none that there is not."""

from __future__ import annotations

import re

import pytest

from docs.pages import text_of
from docs.sentences import Collector, Template
from unbroken.local.launcher import LocalCluster
from unbroken.observe.status_reader import StatusReader
from unbroken.protocol.repair.catchup import Phase
from unbroken.protocol.values.consistency import Consistency

HANDBOOK = text_of("docs/handbook.md")
COLLECTED = Collector().collect()
TEMPLATES = sorted(COLLECTED.found.values(), key=lambda template: template.where)

PASSED_ON = {
    "node/membership/controller.py:_refuse",
    "node/membership/controller.py:_tell",
    "node/replicas/hosting.py:caught_up",
    "node/node.py:__init__",
    "node/node.py:fail",
    "node/node.py:tell",
    "operations/requests.py:watch_layout",
    "protocol/machine.py:_in_sync_changed",
    "protocol/machine.py:_layout_changed",
    "protocol/ingress/sources.py:_carried",
    "protocol/replica/reports.py:greet",
    "protocol/replica/reports.py:tell",
}
"""Where sentences are told that somebody else has made (or something else is told than a sentence)."""


SUMMARY = {text for name in ("in_words", "_redundancy", "_sources", "_results") for text in COLLECTED.made(name)}
"""What `unbroken status` says below its table."""


def explained(heading: str = "## Sentences") -> list[str]:
    """The sentences of the handbook: code in the first cells of tables below a heading."""
    level = heading.partition(" ")[0]
    part = HANDBOOK.partition(f"\n{heading}\n")[2].partition(f"\n{level} ")[0]
    cells = [line.split(" | ")[0].removeprefix("| ") for line in part.splitlines() if line.startswith("| `")]
    return [code.strip() for cell in cells for _, code in re.findall(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", cell)]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.where)
def test_every_sentence_is_explained(template: Template) -> None:
    assert any(template.matches(sentence) for sentence in explained()), (
        f"docs/handbook.md has no example of: {template.text}"
    )


def test_every_explained_sentence_exists() -> None:
    unknown = [sentence for sentence in explained() if not any(t.matches(sentence) for t in TEMPLATES)]
    assert not unknown


@pytest.mark.parametrize("text", sorted(SUMMARY - {"", "…"}))
def test_the_summary_of_the_status_is_explained(text: str) -> None:
    """Its lines are put together from many pieces: what they begin with has to be there."""
    beginning = " ".join(text.partition("…")[0].split()[:2])
    assert any(sentence.startswith(beginning) for sentence in explained("### At a glance")), text


def test_sentences_are_found_wherever_they_are_told() -> None:
    assert len(TEMPLATES) > 60
    assert COLLECTED.passed_on == PASSED_ON, "a sentence is told that cannot be followed to its text"


def test_every_state_is_explained() -> None:
    states = [phase.value for phase in Phase] + [state.value for state in Consistency]
    states += re.findall(r'"state": "(\w+)"', _source(StatusReader) + _source(LocalCluster))
    states += ["running", "starting", "unadopted", "active", "stands by", "holds a copy", "leads the pulse", "follows"]
    assert {"silent", "lost", "dead"} <= set(states)
    assert not [state for state in states if f"`{state}`" not in HANDBOOK]


def _source(it: type) -> str:
    import inspect

    return inspect.getsource(it)
