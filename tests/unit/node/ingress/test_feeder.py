"""The feeder: the same log makes the same units, byte for byte, on every ingress node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kit.support import consumers_of
from unbroken import Client, Dataflow, Generator, Push
from unbroken.connectors.base import Cut, Position, SourceConnector, SourceReader
from unbroken.connectors.dead_letters import DeadLetters
from unbroken.connectors.push.source import PushBatch
from unbroken.data.rows.parsed import Rows
from unbroken.data.schema import parse_schema
from unbroken.data.unit_store import UnitStore, decode_unit, unit_name
from unbroken.errors import Flaw
from unbroken.node.ingress.entries import PULSE
from unbroken.node.ingress.feeder import Feeder
from unbroken.node.ingress.unit_writer import UnitWriter
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.values.ids import ShardId, StreamId

SHARDS = 3
LIMIT = 100


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    return pa.table({"k": pa.array(np.arange(start, stop) % 7, pa.int32()), "v": np.arange(start, stop)})


class Flaky(SourceConnector):
    """A source whose first ``failures`` reads fail, as a disk or a broker may."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    @property
    def schema(self) -> Any:
        return parse_schema("k int, v long")

    def problems(self) -> list[Flaw]:
        return []

    def open(self) -> SourceReader:
        return FlakyReader(self)


class FlakyReader(SourceReader):
    def __init__(self, source: Flaky) -> None:
        self._source = source

    def poll(self, position: Position | None, now_ms: int) -> Cut:
        return Cut((position or 0) + 1)

    def read(self, start: Position | None, end: Position) -> Rows:
        if self._source.failures:
            self._source.failures -= 1
            raise OSError("the disk is away")
        return Rows(numbers(start or 0, end, 0))


def make_flow(*, flaky: Flaky | None = None) -> Dataflow:
    flow = Dataflow("fed", nodes=2)
    flow.source("pushed", Push(schema="k int, v long"))
    flow.source("made", Generator(numbers, schema="k int, v long", rate=None, batch_rows=30, limit=LIMIT))
    names = ["pushed", "made"]
    if flaky is not None:
        flow.source("flaky", flaky)
        names.append("flaky")
    flow.segment(*names, name="sharded", shard_by=["k"], shards=SHARDS)(lambda *frames: frames[0])
    flow.segment("made", name="whole")(lambda frame: frame)
    flow.sink("out", "sharded", Client())
    flow.sink("out2", "whole", Client())
    return flow


class Ingress:
    """One ingress node's feeder and unit files; dead letters are shared, as on one machine."""

    def __init__(self, directory: Path, name: str, flow: Dataflow) -> None:
        self.root = directory / name
        self.store = UnitStore(self.root)
        self.feeder = Feeder(
            flow,
            UnitWriter(consumers_of(flow), self.store, self.path),
            DeadLetters(directory / "dead-letters"),
        )

    def path(self, stream: StreamId, number: int) -> Path:
        return self.root / str(stream) / unit_name(number)

    def take(self, entry: Entry) -> None:
        """An entry is persisted and committed."""
        self.feeder.persisted(entry)
        if entry.pulse:
            self.feeder.produce(entry)
        else:
            self.feeder.take_push(entry)

    def files(self) -> dict[str, bytes]:
        return {str(p.relative_to(self.root)): p.read_bytes() for p in self.root.rglob("*") if p.is_file()}

    def unit(self, source: str, consumer: str, shard: int, number: int) -> pa.Table:
        stream = StreamId(ShardId(source, 0), ShardId(consumer, shard))
        return decode_unit(self.store.read(self.path(stream, number)))[1]

    def values(self, source: str, number: int) -> list[int]:
        pieces = [self.unit(source, "sharded", shard, number) for shard in range(SHARDS)]
        return sorted(value for piece in pieces for value in piece.column("v").to_pylist())


def push(index: int, sequence: int, rows: bytes) -> Entry:
    return Entry(index, 1, PushBatch("pushed", "p", sequence, rows).to_bytes())


def run_log(leader: Ingress, pulses: int) -> list[Entry]:
    """A log as the leader makes it: before each pulse two rows are pushed, one of them bad in the second pulse."""
    log: list[Entry] = []
    for pulse in range(1, pulses + 1):
        bad = b"nonsense\n" if pulse == 2 else b""
        rows = b'{"k":1,"v":%d}\n' % (1000 + pulse) + bad + b'{"k":2,"v":%d}\n' % (2000 + pulse)
        log.append(push(len(log) + 1, pulse, rows))
        leader.take(log[-1])
        body, final = leader.feeder.poll(pulse * 1000, 1)
        log.append(Entry(len(log) + 1, 1, body, pulse, final))
        leader.take(log[-1])
    return log


def test_feeders_given_the_same_entries_write_the_same_bytes(tmp_path: Path) -> None:
    leader = Ingress(tmp_path, "a", make_flow())
    log = run_log(leader, 5)
    follower = Ingress(tmp_path, "b", make_flow())
    for entry in log:
        follower.take(entry)
    assert len(leader.files()) == 5 * (SHARDS + SHARDS + 1)
    assert leader.files() == follower.files()
    assert (leader.feeder.rows, leader.feeder.bad_rows) == (follower.feeder.rows, follower.feeder.bad_rows)
    assert leader.feeder.rows == LIMIT + 10


class Untouched(FlakyReader):
    """A source that must not be asked for anything."""

    def poll(self, position: Position | None, now_ms: int) -> Cut:
        raise AssertionError("a paused flow asks a source how far it is")

    def read(self, start: Position | None, end: Position) -> Rows:
        raise AssertionError("a paused flow reads a source")


@pytest.mark.parametrize("before", [0, 2])
def test_pulses_of_a_paused_flow_have_no_rows_and_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    leader = Ingress(tmp_path, "a", make_flow(flaky=Flaky(0)))
    log = run_log(leader, before)
    rows = leader.feeder.rows
    log.append(push(len(log) + 1, before + 1, b'{"k":1,"v":1}\n'))
    leader.take(log[-1])
    with monkeypatch.context() as patch:
        patch.setattr(FlakyReader, "poll", Untouched.poll)
        patch.setattr(FlakyReader, "read", Untouched.read)
        for pulse in range(before + 1, before + 4):
            body, final = leader.feeder.poll(10_000, 1, paused=True)
            assert not final
            log.append(Entry(len(log) + 1, 1, body, pulse))
            leader.take(log[-1])
            assert leader.values("made", pulse) == leader.values("pushed", pulse) == []
    assert leader.feeder.rows == rows
    after = leader.feeder.base_at(before + 3)
    assert after is not None and after.done_through == log[-4].index - 1, "what was pushed before the pause is kept"
    body, _ = leader.feeder.poll(20_000, 1)
    log.append(Entry(len(log) + 1, 1, body, before + 4))
    leader.take(log[-1])
    assert leader.values("pushed", before + 4) == [1]
    assert leader.values("made", before + 4) == list(range(before * 30, before * 30 + 30))
    follower = Ingress(tmp_path, "b", make_flow(flaky=Flaky(0)))
    for entry in log:
        follower.take(entry)
    assert follower.files() == leader.files()


def test_units_hold_each_row_once_in_its_shard(tmp_path: Path) -> None:
    ingress = Ingress(tmp_path, "a", make_flow())
    run_log(ingress, 5)
    made = [ingress.values("made", number) for number in range(1, 6)]
    assert made == [list(range(i, min(i + 30, LIMIT))) for i in range(0, 121, 30)]
    assert [ingress.values("pushed", number) for number in range(1, 6)] == [[1000 + n, 2000 + n] for n in range(1, 6)]
    for shard in range(SHARDS):
        keys = {k for n in range(1, 6) for k in ingress.unit("made", "sharded", shard, n).column("k").to_pylist()}
        elsewhere = {
            k
            for other in range(SHARDS)
            if other != shard
            for n in range(1, 6)
            for k in ingress.unit("made", "sharded", other, n).column("k").to_pylist()
        }
        assert not keys & elsewhere
    assert ingress.unit("made", "whole", 0, 1).column("v").to_pylist() == list(range(30))


def test_bad_rows_go_to_the_dead_letters_once(tmp_path: Path) -> None:
    leader, follower = Ingress(tmp_path, "a", make_flow()), Ingress(tmp_path, "b", make_flow())
    for entry in run_log(leader, 3):
        follower.take(entry)
    (path,) = (tmp_path / "dead-letters").iterdir()
    (letter,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (letter["source"], letter["pulse"], letter["raw"], letter["origin"]) == ("pushed", 2, "nonsense", "p/2:2")
    assert letter["reason"]
    assert leader.feeder.bad_rows == follower.feeder.bad_rows == 1


def test_headers_tell_pulse_cut_time_and_end(tmp_path: Path) -> None:
    leader = Ingress(tmp_path, "a", make_flow())
    entry = Entry(1, 1, leader.feeder.poll(5_000, 1)[0], pulse=1, final=True)
    headers = leader.feeder.produce(entry)
    assert len(headers) == SHARDS + SHARDS + 1
    for header in headers:
        assert (header.number, header.pulse, header.cut_ms, header.final, header.stable) == (1, 1, 5_000, True, True)
        stored, table = decode_unit(leader.store.read(leader.path(header.stream, 1)))
        assert stored == header and header.digest.rows == table.num_rows


def test_the_end_comes_only_when_every_source_is_exhausted(tmp_path: Path) -> None:
    ingress = Ingress(tmp_path, "a", make_flow())
    run_log(ingress, 5)
    assert ingress.feeder.poll(9_000, 1)[1] is False  # pushes may always follow
    flow = Dataflow("ends", nodes=2)
    flow.source("made", Generator(numbers, schema="k int, v long", rate=None, batch_rows=60, limit=LIMIT))
    flow.segment("made", name="whole")(lambda frame: frame)
    flow.sink("out", "whole", Client())
    ending = Ingress(tmp_path, "c", flow)
    finals = []
    for pulse in (1, 2):
        body, final = ending.feeder.poll(pulse, 1)
        finals.append(final)
        ending.take(Entry(pulse, 1, body, pulse, final))
    assert finals == [False, True]


def test_cut_times_never_go_back(tmp_path: Path) -> None:
    ingress = Ingress(tmp_path, "a", make_flow())
    times = []
    for pulse, now_ms in enumerate((5_000, 4_000, 4_500, 6_000), start=1):
        body, final = ingress.feeder.poll(now_ms, 1)
        times.append(PULSE.decode(body).cut_ms)
        ingress.take(Entry(pulse, 1, body, pulse, final))
    assert times == [5_000, 5_001, 5_002, 6_000]


def test_a_member_that_becomes_leader_goes_on_where_the_log_ends(tmp_path: Path) -> None:
    leader, follower = Ingress(tmp_path, "a", make_flow()), Ingress(tmp_path, "b", make_flow())
    log = run_log(leader, 2)
    for entry in log:
        follower.take(entry)
    assert follower.feeder.poll(7_000, 1) == leader.feeder.poll(7_000, 1)
    # An entry that was persisted but never committed is replaced: its place counts from where the replacement ends.
    first, second = (PULSE.decode(log[index].body).spans["made"][1] for index in (1, 3))
    follower.feeder.persisted(Entry(5, 1, leader.feeder.poll(8_000, 1)[0], 3))
    assert PULSE.decode(follower.feeder.poll(9_000, 1)[0]).spans["made"][0] != second
    follower.feeder.persisted(Entry(4, 2, log[3].body, 2))
    assert PULSE.decode(follower.feeder.poll(9_000, 1)[0]).spans["made"][0] == second != first


def test_a_pulse_that_is_cut_off_the_log_does_not_count(tmp_path: Path) -> None:
    """What replaces it need not be a pulse: the rows of the lost pulse belong to the next one."""
    leader, follower = Ingress(tmp_path, "a", make_flow()), Ingress(tmp_path, "b", make_flow())
    log = run_log(leader, 2)
    for entry in log:
        follower.take(entry)
    expected = follower.feeder.poll(9_000, 1)
    for index, pulse in ((5, 3), (6, 4)):
        body, final = leader.feeder.poll(7_000 + index, 1)
        lost = Entry(index, 1, body, pulse, final)
        leader.feeder.persisted(lost)
        follower.feeder.persisted(lost)
    assert follower.feeder.poll(9_000, 1) == leader.feeder.poll(9_000, 1) != expected
    follower.feeder.persisted(Entry(5, 2, push(5, 3, b'{"k":1,"v":1}\n').body))
    assert follower.feeder.poll(9_000, 1) == expected


def test_writing_a_pulse_again_changes_nothing(tmp_path: Path) -> None:
    ingress = Ingress(tmp_path, "a", make_flow())
    body, final = ingress.feeder.poll(1_000, 1)
    entry = Entry(1, 1, body, 1, final)
    first = ingress.feeder.produce(entry)
    before = ingress.files()
    assert ingress.feeder.produce(entry) == ()
    again = Ingress(tmp_path, "a", make_flow())
    assert again.feeder.produce(entry) == first
    assert again.files() == before


def test_a_source_that_fails_for_a_while_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """The units of the other sources are given out at once, those of the one that failed when it can be read."""
    ingress = Ingress(tmp_path, "a", make_flow(flaky=Flaky(2)))
    ingress.take(push(1, 1, b'{"k":1,"v":7}\nnonsense\n'))
    body, final = ingress.feeder.poll(1_000, 1)
    entry = Entry(2, 1, body, 1, final)
    ingress.feeder.persisted(entry)
    assert {header.stream.producer.part for header in ingress.feeder.produce(entry)} == {"pushed", "made"}
    assert ingress.feeder.health.troubles == {"flaky": "the disk is away"} and ingress.feeder.health.behind
    assert ingress.feeder.health.stuck()["flaky"].pulse == 1 and set(ingress.feeder.health.stuck()) == {"flaky"}
    assert ingress.feeder.base_at(1) is None, "the rows of the pulse are not all in units"
    assert ingress.feeder.collect() == ()
    assert {header.stream.producer.part for header in ingress.feeder.collect()} == {"flaky"}
    assert not ingress.feeder.health.behind and not ingress.feeder.health.stuck()
    assert ingress.values("pushed", 1) == [7]
    assert ingress.values("flaky", 1) == [0]
    assert (ingress.feeder.rows, ingress.feeder.bad_rows) == (1 + 30 + 1, 1)
    assert ingress.feeder.push_readers()["pushed"].buffered_bytes == 0


def test_a_push_to_a_source_that_is_not_declared_is_ignored(tmp_path: Path) -> None:
    ingress = Ingress(tmp_path, "a", make_flow())
    ingress.take(Entry(1, 1, PushBatch("nobody", "p", 1, b"{}").to_bytes()))
    assert ingress.feeder.push_readers()["pushed"].buffered_bytes == 0
    ingress.feeder.close()
