"""Journals on the command line: which command is meant, and how a replay is shown."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import msgspec
import pytest

from kit.topologies import chain
from unbroken.codecs.journal import JOURNAL, JournalFile, JournalForm, JournalSegment
from unbroken.data.checksum import sealed
from unbroken.protocol.events import Event, Started, Tick
from unbroken.protocol.journal import Beginning, JournalStep
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ingress_log import InSync
from unit.cli.asking import ask

BEGINNING = Beginning(
    "a", chain((1,)), chained_placement(chain((1,)), {"a": "1", "b": "2"}), InSync(1, "a", frozenset("ab"), 0)
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A journal of two steps that can be repeated, and two after a gap."""
    form, protocol = JournalForm(), BEGINNING.protocol()

    def step(event: Event, at_ms: float) -> bytes:
        return form.step_bytes(JournalStep(at_ms, event, form.mark(protocol.handle(event, at_ms))))

    def packed(*steps: bytes) -> tuple[bytes, ...]:
        return (zlib.compress(msgspec.msgpack.encode([msgspec.Raw(each) for each in steps])),)

    first = packed(step(Started(), 1_000.0), step(Tick(), 1_500.0))
    latest = packed(step(Tick(), 9_000.0), step(Tick(), 9_500.0))
    segments = JournalSegment(1, b"", first), JournalSegment(10, b"", latest)
    kept = JournalFile("a", "asked for", 0, form.beginning_bytes(BEGINNING), segments)
    path = tmp_path / "a.journal"
    path.write_bytes(sealed(JOURNAL.encode(kept)))
    return path


def test_steps_after_a_gap_are_text_like_those_before(file: Path) -> None:
    done = ask("journal", "replay", str(file))
    assert done.exit_code == 0, done.output
    *steps, last = done.stdout.splitlines()
    shown = [line for line in steps if not line.lstrip().startswith("->")]
    assert [line.split()[:4] for line in shown] == [
        ["1", "0.000", "s", "="],
        ["2", "0.500", "s", "="],
        ["------", "7", "steps", "are"],
        ["10", "8.000", "s", "not"],
        ["11", "8.500", "s", "not"],
    ]
    assert shown[2].endswith("missing; those that follow are shown and not compared")
    assert last.endswith("; 7 steps are missing; 2 are shown and not compared")


def test_a_line_of_json_for_each_step(file: Path) -> None:
    done = ask("journal", "replay", str(file), "--json")
    *steps, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step.get("number") for step in steps] == [1, 2, None, 10, 11]
    assert [step.get("same") for step in steps] == [True, True, None, None, None]
    assert [step.get("repeated") for step in steps] == [None, None, False, False, False]
    assert steps[2] == {"missing": 7, "before": 10, "repeated": False}
    assert (last["steps"], last["different"], last["missing"], last["shown_only"]) == (2, 0, 7, 2)


def test_replay_needs_a_file() -> None:
    done = ask("journal", "replay")
    assert done.exit_code == 2 and "FILE" in done.output
    done = ask("journal", "replay", "nothing.journal")
    assert done.exit_code == 1 and "the file cannot be read: nothing.journal" in done.output


@pytest.mark.parametrize(
    "words", [("node-1",), ("write", "node-1"), ("--out", "x", "node-1"), ("write", "replay")], ids=" ".join
)
def test_a_node_is_meant_unless_a_command_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    done = ask("journal", *words, "--dir", str(tmp_path / "none"))
    assert done.exit_code not in (0, 2) and "none" in done.output, "it looks for a run, and does not read a file"
