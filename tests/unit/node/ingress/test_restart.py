"""An ingress node that starts from its disk, or from a copy of another's, does what was done the first time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kit.support import consumers_of
from unbroken import Client, Dataflow, Generator, Push
from unbroken.connectors.dead_letters import DeadLetters
from unbroken.connectors.push.source import PushBatch
from unbroken.data.unit_store import UnitStore, unit_name
from unbroken.node.ingress import log_file as logfile
from unbroken.node.ingress.entries import PULSE
from unbroken.node.ingress.feeder import Feeder
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.ingress.unit_writer import UnitWriter
from unbroken.protocol.ingress.log import Entry


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    return pa.table({"k": pa.array(np.arange(start, stop) % 7, pa.int32()), "v": np.arange(start, stop)})


def make_flow() -> Dataflow:
    flow = Dataflow("fed", nodes=2)
    flow.source("first", Push(schema="k int, v long"))
    flow.source("made", Generator(numbers, schema="k int, v long", rate=None, batch_rows=30, limit=200))
    flow.source("second", Push(schema="k int, v long"))
    flow.segment("first", "second", "made", name="sums", shard_by=["k"], shards=2)(lambda *frames: frames[0])
    flow.sink("out", "sums", Client())
    return flow


class Member:
    """An ingress node as it works: log, ledgers and feeder on one directory; its units go to another one."""

    def __init__(self, directory: Path, units: Path, letters: Path) -> None:
        self.log = IngressLogFile(directory)
        self.units = units
        self.feeder = Feeder(
            make_flow(),
            UnitWriter(
                consumers_of(make_flow()),
                UnitStore(units),
                lambda stream, number: units / str(stream) / unit_name(number),
            ),
            DeadLetters(letters),
            self.log.base,
            self.log.read_waiting(),
        )
        self.ledgers = self.feeder.ledgers()
        for entry in self.log.read():
            self.feeder.persisted(entry)

    def persist(self, entry: Entry) -> None:
        self.log.append(entry)
        self.feeder.persisted(entry)

    def commit(self, entry: Entry) -> None:
        if entry.pulse:
            self.feeder.produce(entry)
            return
        batch = PushBatch.from_bytes(entry.body)
        if self.ledgers[batch.source].accept(batch.producer, batch.sequence) != "duplicate":
            self.feeder.take_push(entry)

    def trim(self, pulse: int) -> None:
        base = self.feeder.base_at(pulse)
        if base is not None:
            self.log.rebase(base)

    def after(self, pulse: int) -> dict[str, bytes]:
        """The units after a pulse, by name."""
        paths = [path for path in self.units.rglob("*.arrow") if int(path.stem) > pulse]
        return {str(path.relative_to(self.units)): path.read_bytes() for path in paths}

    def state(self) -> object:
        """Everything that decides what comes next."""
        ledgers = {name: ledger.known() for name, ledger in self.ledgers.items()}
        buffered = {name: reader.buffered_bytes for name, reader in self.feeder.push_readers().items()}
        return self.feeder.poll(99_000, 1), self.feeder.rows, self.feeder.bad_rows, ledgers, buffered

    def close(self) -> None:
        self.log.close()
        self.feeder.close()


def make_log(member: Member, pulses: int) -> list[Entry]:
    """A log as a busy leader makes it: pushes to two sources, some logged between a poll and its pulse, some twice."""
    log: list[Entry] = []

    def take(body: bytes, pulse: int = 0, final: bool = False) -> None:
        log.append(Entry(len(log) + 1, 1, body, pulse, final))
        member.persist(log[-1])
        member.commit(log[-1])

    def push(source: str, producer: str, sequence: int) -> bytes:
        bad = b"nonsense\n" if sequence % 3 == 0 else b""
        rows = b'{"k":%d,"v":%d}\n' % (sequence, 1000 * sequence + len(log))
        return PushBatch(source, producer, sequence, rows + bad).to_bytes()

    for pulse in range(1, pulses + 1):
        first = push("first", "p", pulse)
        take(first)
        body, final = member.feeder.poll(pulse * 1000, 1)
        if pulse % 3:
            take(push("second", "q", pulse))  # cut by the pulse after the one that follows
        if pulse % 2:
            take(first)  # the producer did not hear of it
        take(body, pulse, final)
    return log


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that can be deleted is."""
    monkeypatch.setattr(logfile, "SEGMENT_BYTES", 1)
    monkeypatch.setattr(logfile, "BASE_PULSES", 1)
    monkeypatch.setattr("os.fsync", lambda handle: None)  # the order of things is tested, not the disk


def test_a_crash_at_any_entry_changes_nothing(tmp_path: Path, eager: None) -> None:
    letters = tmp_path / "letters"
    reference = Member(tmp_path / "reference", tmp_path / "reference-units", letters)
    log = make_log(reference, 5)
    for crash in range(1, len(log) + 1):
        for behind in (1, 3):
            root = tmp_path / f"{crash}-{behind}"
            member = Member(root / "log", root / "units", letters)
            for entry in log[:crash]:
                member.persist(entry)
                member.commit(entry)
                member.trim(entry.pulse - behind)
            member.close()
            again = Member(root / "log", root / "units-again", letters)
            base = again.log.base
            kept = again.log.read()
            assert kept == log[base.index : crash]
            assert base.pulse == max(0, *(entry.pulse - behind for entry in log[:crash]))
            for entry in [*kept, *log[crash:]]:
                if entry.index > crash:
                    again.persist(entry)
                again.commit(entry)
            assert again.after(0) == reference.after(base.pulse)
            assert again.state() == reference.state()
            again.close()


def test_waiting_pushes_are_part_of_the_test(tmp_path: Path, eager: None) -> None:
    member = Member(tmp_path / "log", tmp_path / "units", tmp_path / "letters")
    log = make_log(member, 4)
    base = member.feeder.base_at(4)
    assert base is not None and base.waiting["second"] and base.done_through < base.index
    assert member.feeder.base_at(4) is None
    assert base.index == len(log) and not base.finished


def test_a_push_sent_again_after_the_restart_is_recognised(tmp_path: Path, eager: None) -> None:
    member = Member(tmp_path / "log", tmp_path / "units", tmp_path / "letters")
    log = make_log(member, 5)
    member.trim(5)
    state = member.state()
    member.close()
    again = Member(tmp_path / "log", tmp_path / "units", tmp_path / "letters")
    assert len(again.log.read_all()) < 4 and again.log.read() == []
    assert again.ledgers["first"].offer("p", 5) == "duplicate"
    assert again.ledgers["first"].offer("p", 6) == "new"
    again.commit(Entry(len(log) + 1, 2, log[0].body))
    assert again.state() == state


def test_units_that_are_there_are_not_written_again(tmp_path: Path, eager: None) -> None:
    member = Member(tmp_path / "log", tmp_path / "units", tmp_path / "letters")
    make_log(member, 3)
    member.trim(1)
    state = member.state()
    member.close()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "units").rglob("*.arrow")}
    again = Member(tmp_path / "log", tmp_path / "units", tmp_path / "letters")
    for entry in again.log.read():
        again.commit(entry)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "units").rglob("*.arrow")} == before
    assert again.state() == state


@pytest.mark.parametrize("base", [0, 2, 4])
def test_a_newcomer_goes_on_from_a_pinned_copy(tmp_path: Path, eager: None, base: int) -> None:
    letters = tmp_path / "letters"
    reference = Member(tmp_path / "reference", tmp_path / "reference-units", letters)
    log = make_log(reference, 6)
    donor = Member(tmp_path / "donor", tmp_path / "donor-units", letters)
    for entry in log[:-3]:
        donor.persist(entry)
        donor.commit(entry)
    donor.trim(base)
    donor.log.pin(tmp_path / "copy")
    for entry in log[-3:]:
        donor.persist(entry)
        donor.commit(entry)
        donor.trim(entry.pulse)
    newcomer = Member(tmp_path / "copy", tmp_path / "copy-units", letters)
    for entry in newcomer.log.read():
        newcomer.commit(entry)
    for entry in log[-3:]:
        newcomer.persist(entry)
        newcomer.commit(entry)
    assert newcomer.after(0) == reference.after(base)
    assert newcomer.state() == reference.state() == donor.state()


def test_a_node_that_is_behind_has_the_base_of_what_it_has_produced(tmp_path: Path, eager: None) -> None:
    member = Member(tmp_path / "log", tmp_path / "units", tmp_path / "letters")
    log = make_log(member, 3)
    base = member.feeder.base_at(7)
    assert base is not None and (base.pulse, base.index) == (3, len(log))
    assert base.last_cut_ms == 3000 and base.positions["made"] == PULSE.decode(log[-1].body).spans["made"][1]


def test_the_end_is_part_of_the_base(tmp_path: Path, eager: None) -> None:
    member = Member(tmp_path / "log", tmp_path / "units", tmp_path / "letters")
    body, _ = member.feeder.poll(1_000, 1)
    entry = Entry(1, 1, body, 1, final=True)
    member.persist(entry)
    member.commit(entry)
    member.trim(1)
    assert IngressLogFile(tmp_path / "log").base.finished
