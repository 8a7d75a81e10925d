"""State moves between nodes whole and unchanged, whatever happens to the donor, the network and the disk on the way."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.pinned_state import BAD, CHUNK, NEW, TREE, Batches, Clock, Donor, asking, pin, tree_of, write
from kit.pinned_state import clock as clock
from kit.pinned_state import donor as donor
from kit.pinned_state import pins as pins
from kit.pinned_state import target as target
from kit.support import TOKEN, wait_until
from unbroken.transport.state import transfer
from unbroken.transport.state.donor_calls import PinLost, TransferError, TransferStopped, ask_pin, release_pin
from unbroken.transport.state.pins import (
    CHUNK_SCHEMA,
    MANIFEST,
    Pins,
)
from unbroken.transport.state.transfer import Fetch, Pace


class Running:
    """A fetch in a thread of its own, and how it ended."""

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch
        self.error: TransferError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.fetch.run()
        except TransferError as error:
            self.error = error

    def join(self, deadline_s: float = 10) -> TransferError | None:
        self._thread.join(deadline_s)
        assert not self._thread.is_alive(), f"the fetch did not end within {deadline_s:g} s"
        return self.error


# --- whole copies ---

names = st.text("abc0.#> é", min_size=1, max_size=8).filter(lambda name: name not in (".", ".."))
sizes = st.sampled_from([0, 1, 100, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
trees = st.dictionaries(st.lists(names, min_size=1, max_size=3).map("/".join), sizes, max_size=12).filter(
    lambda tree: not any(a.startswith(b + "/") for a in tree for b in tree)
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees, before=trees, seed=st.integers(0, 2**32))
def test_any_tree_arrives_as_it_is(donor: Donor, tree: dict[str, int], before: dict[str, int], seed: int) -> None:
    """Whatever another fetch has left in the target."""
    contents = {path: random.Random(seed).randbytes(size) for path, size in tree.items()}
    with tempfile.TemporaryDirectory() as directory:
        try:
            manifest = pin(donor.pins, contents)
            write(Path(directory), {path: contents.get(path, b"")[:size] for path, size in before.items()})
            fetch = Fetch(donor.address, TOKEN, MANIFEST.decode(MANIFEST.encode(manifest)), Path(directory))
            done = fetch.run()
        finally:
            donor.pins.release("p")
        assert tree_of(Path(directory)) == contents
        assert done.fetched + done.reused == fetch.total == sum(tree.values())


def test_many_small_files_come_with_one_call(donor: Donor, target: Path) -> None:
    tree = {f"state/{number % 5}/{number}.delta": os.urandom(200) for number in range(400)}
    manifest = pin(donor.pins, tree)
    assert Fetch(donor.address, TOKEN, manifest, target).run().fetched == 400 * 200
    assert tree_of(target) == tree
    assert len(donor.tickets) == 1


def test_more_files_than_a_call_may_ask_for(donor: Donor, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PATHS_LIMIT", 7)
    tree = {str(number): b"%d" % number for number in range(20)}
    Fetch(donor.address, TOKEN, pin(donor.pins, tree), target).run()
    assert tree_of(target) == tree
    assert [len(ticket.paths) for ticket in donor.tickets] == [7, 7, 6]


def test_the_manifest_is_asked_for_and_the_pin_released(donor: Donor, target: Path) -> None:
    manifest = pin(donor.pins, TREE)
    asked = ask_pin(donor.address, TOKEN, asking("p"), 5)
    assert asked == manifest and asked.version == 7
    Fetch(donor.address, TOKEN, asked, target).run()
    release_pin(donor.address, TOKEN, "p", 5)
    release_pin(donor.address, TOKEN, "p", 5)
    assert donor.pins.ids() == []
    with pytest.raises(PinLost, match="the pin p is gone"):
        ask_pin(donor.address, TOKEN, asking("p"), 5)
    assert tree_of(target) == TREE


def test_answers_that_are_no_manifest_and_refusals_are_transfer_errors(donor: Donor) -> None:
    with pytest.raises(TransferError, match=r"cannot be used: .*the path '\.\./x' leaves"):
        ask_pin(donor.address, TOKEN, asking(BAD), 5)
    for name in "abc":
        donor.pins.directory(name)
    with pytest.raises(TransferError, match=r"refused: this node already holds 3 pins.*try again"):
        ask_pin(donor.address, TOKEN, asking(NEW), 5)
    with pytest.raises(TransferError, match=r"refused: the pin a is not sealed"):
        ask_pin(donor.address, TOKEN, asking("a"), 5)


def test_a_second_fetch_takes_what_is_there_and_removes_the_rest(donor: Donor, target: Path, tmp_path: Path) -> None:
    Fetch(donor.address, TOKEN, pin(donor.pins, TREE, "old"), target).run()
    outside = tmp_path / "outside"
    write(outside, {"precious": b"kept"})
    (target / "link").symlink_to(outside)
    (target / "checkpoint" / "offsets" / "2").symlink_to(outside / "precious")
    young = {**TREE, "checkpoint/offsets/1": b"V1", "checkpoint/offsets/2": b"v2", "link/inner": b"in"}
    del young["checkpoint/.1.crc"]
    done = Fetch(donor.address, TOKEN, pin(donor.pins, young, "young"), target).run()
    assert tree_of(target) == young
    assert (done.fetched, done.reused) == (6, 76_800)
    assert tree_of(outside) == {"precious": b"kept"}


# --- donors that fail ---


def test_the_copy_goes_on_where_it_was_when_the_donor_comes_back(pins: Pins, target: Path) -> None:
    reached, cut = threading.Event(), threading.Event()

    def interrupted(batches: Batches) -> Batches:
        for _ in range(3):
            yield next(batches)
        reached.set()
        cut.wait(30)
        raise flight.FlightUnavailableError("going down")

    tree = {"large": os.urandom(20 * CHUNK)}
    manifest = pin(pins, tree)
    first = Donor(pins, bend=interrupted)
    running = Running(Fetch(first.address, TOKEN, manifest, target))
    assert reached.wait(30)
    port = first.port
    cut.set()
    first.shutdown()
    second = Donor(pins, port)
    assert running.join() is None
    second.shutdown()
    assert tree_of(target) == tree
    assert second.tickets[0].offset == 3 * CHUNK
    assert running.fetch.fetched == 20 * CHUNK


def test_a_copy_goes_on_from_the_parts_of_an_interrupted_one(donor: Donor, target: Path) -> None:
    tree = {"a": os.urandom(3 * CHUNK), "b": os.urandom(5 * CHUNK), "c": b"c", "d": os.urandom(2 * CHUNK)}
    manifest = pin(donor.pins, tree)
    digest = manifest.by_path["b"].sha256[:16]
    write(target, {"a": tree["a"], f"b.{digest}.part": tree["b"][:CHUNK], "b.0000000000000000.part": b"other"})
    write(target, {f"c.{manifest.by_path['c'].sha256[:16]}.part": b"c, and too long"})
    write(target, {f"d.{manifest.by_path['d'].sha256[:16]}.part": tree["d"]})  # whole, but not yet named
    done = Fetch(donor.address, TOKEN, manifest, target).run()
    assert tree_of(target) == tree
    assert (done.fetched, done.reused) == (4 * CHUNK + 1, 6 * CHUNK)


def test_a_call_that_takes_long_is_gone_on_with_by_another(donor: Donor, target: Path) -> None:
    tree = {"large": os.urandom(40 * CHUNK)}
    fetch = Fetch(donor.address, TOKEN, pin(donor.pins, tree), target, 60 * CHUNK, call_s=0.2)
    assert fetch.run().fetched == 40 * CHUNK
    assert tree_of(target) == tree


def test_a_donor_that_is_gone_is_given_up_at_the_deadline(pins: Pins, target: Path) -> None:
    tree = {"a": b"a", "large": os.urandom(5 * CHUNK)}
    manifest = pin(pins, tree)
    digest = manifest.by_path["large"].sha256[:16]
    write(target, {"a": b"a", f"large.{digest}.part": tree["large"][:CHUNK], "earlier": b"e"})
    before = tree_of(target)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    since = time.monotonic()
    with pytest.raises(TransferError, match=r"sent nothing of the pin p for 0\.5 s.*connect.*is kept") as raised:
        Fetch(address, TOKEN, manifest, target, patience_s=0.5).run()
    assert 0.3 < time.monotonic() - since < 3
    assert not isinstance(raised.value, PinLost)
    assert tree_of(target) == before


def test_an_answer_that_ends_early_is_asked_for_again_until_the_deadline(donor: Donor, target: Path) -> None:
    manifest = pin(donor.pins, {"large": os.urandom(3 * CHUNK)})
    donor.bend = lambda batches: (batch for batch in [next(batches)])
    Fetch(donor.address, TOKEN, manifest, target).run()
    assert [ticket.offset for ticket in donor.tickets] == [0, CHUNK, 2 * CHUNK]
    donor.bend = lambda batches: iter(())
    with pytest.raises(TransferError, match="its answer ended early"):
        Fetch(donor.address, TOKEN, manifest, target.with_name("other"), patience_s=1.5).run()


def test_a_pin_that_expires_during_the_copy_ends_it_and_a_following_one_goes_on(
    donor: Donor, target: Path, clock: Clock
) -> None:
    def expiring(batches: Batches) -> Batches:
        yield next(batches)
        clock.now += 61
        donor.pins.expire(clock.now)
        yield from batches

    tree = {"a": os.urandom(CHUNK), "b": os.urandom(3 * CHUNK)}
    donor.bend = expiring
    with pytest.raises(PinLost, match="pin one is gone"):
        Fetch(donor.address, TOKEN, pin(donor.pins, tree, "one"), target).run()
    assert len(donor.tickets) == 1, "the donor is not asked again"
    donor.bend = None
    done = Fetch(donor.address, TOKEN, pin(donor.pins, tree, "two"), target).run()
    assert tree_of(target) == tree
    assert (done.fetched, done.reused) == (3 * CHUNK, CHUNK)


def damage(batch: pa.RecordBatch) -> pa.RecordBatch:
    contents = [bytearray(content) for content in batch.column(2).to_pylist()]
    contents[0][len(contents[0]) // 2] ^= 1
    data = pa.array([bytes(content) for content in contents], pa.large_binary())
    return pa.record_batch([batch.column(0), batch.column(1), data], schema=CHUNK_SCHEMA)


def test_a_damaged_chunk_is_noticed_and_the_file_fetched_again(donor: Donor, target: Path) -> None:
    tree = {name: os.urandom(CHUNK + 10) for name in "abc"}
    manifest = pin(donor.pins, tree)
    donor.bend = lambda batches: map(damage, batches) if len(donor.tickets) == 1 else batches
    done = Fetch(donor.address, TOKEN, manifest, target).run()
    assert tree_of(target) == tree
    assert done.fetched > manifest.total


def test_a_file_that_is_damaged_twice_is_named(donor: Donor, target: Path) -> None:
    manifest = pin(donor.pins, {"sub/bad": os.urandom(10)})
    donor.bend = lambda batches: map(damage, batches)
    with pytest.raises(TransferError, match=r"'sub/bad' came from .* with a wrong digest twice"):
        Fetch(donor.address, TOKEN, manifest, target).run()
    assert tree_of(target) == {"sub": b"directory"}
    assert len(donor.tickets) == 2


def rows(*rows: tuple[int | None, int | None, bytes | None], schema: pa.Schema = CHUNK_SCHEMA) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


@pytest.mark.parametrize(
    "batch",
    [
        rows((1, 0, b"x")),
        rows((-1, 0, b"x")),
        rows((0, 1, b"x")),
        rows((0, -1, b"x")),
        rows((0, 0, b"")),
        rows((0, 0, b"12345678901")),
        rows((0, 0, b"1234567890"), (1, 0, b"x")),
        rows((0, 0, None)),
        rows((0, None, b"x")),
    ],
)
def test_contents_that_were_not_asked_for_are_refused(donor: Donor, target: Path, batch: pa.RecordBatch) -> None:
    manifest = pin(donor.pins, {"ten": b"1234567890"})
    donor.bend = lambda batches: iter([batch])
    with pytest.raises(TransferError, match=r"which is not what comes next|something else than contents"):
        Fetch(donor.address, TOKEN, manifest, target).run()


def test_a_wrong_token_gets_nothing(donor: Donor, target: Path) -> None:
    manifest = pin(donor.pins, TREE)
    with pytest.raises(TransferError, match="sent nothing"):
        Fetch(donor.address, TOKEN[:-1], manifest, target, patience_s=0.5).run()
    with pytest.raises(TransferError, match="did not answer"):
        ask_pin(donor.address, TOKEN[:-1], asking("p"), 2)
    assert donor.tickets == []


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A donor in a process of its own, with one pinned file; thawed and ended afterwards."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, str(tmp_path / "pins")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    yield process
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.communicate(timeout=30)


def test_a_frozen_donor_is_given_up_and_used_again_when_it_thaws(process: subprocess.Popen[str], target: Path) -> None:
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    manifest = ask_pin(address, TOKEN, asking("frozen"), 10)
    fetch = Fetch(address, TOKEN, manifest, target, 20e6, patience_s=1, call_s=0.4)
    running = Running(fetch)
    wait_until(lambda: fetch.fetched, 30, "the first bytes")
    process.send_signal(signal.SIGSTOP)
    assert "sent nothing of the pin frozen for 1 s" in str(running.join())
    stopped = threading.Event()
    other = Running(Fetch(address, TOKEN, manifest, target.with_name("other"), None, stopped, patience_s=60))
    stopped.set()
    assert isinstance(other.join(30), TransferStopped)
    process.send_signal(signal.SIGCONT)
    done = Fetch(address, TOKEN, manifest, target).run()
    assert done.reused >= fetch.fetched
    assert hashlib.sha256((target / "large").read_bytes()).hexdigest() == manifest.files[0].sha256


# --- stopping, pacing, full disks ---


def test_stop_ends_a_copy_from_a_donor_that_hangs(donor: Donor, target: Path) -> None:
    reached, free, stop = threading.Event(), threading.Event(), threading.Event()

    def hanging(batches: Batches) -> Batches:
        yield next(batches)
        reached.set()
        free.wait(60)

    donor.bend = hanging
    running = Running(
        Fetch(donor.address, TOKEN, pin(donor.pins, {"large": os.urandom(2 * CHUNK)}), target, None, stop)
    )
    assert reached.wait(30)
    wait_until(lambda: running.fetch.fetched, 30, "the first bytes")
    stop.set()
    assert isinstance(running.join(30), TransferStopped)
    free.set()
    name = f"fetch-from-{donor.address}"
    wait_until(lambda: name not in [thread.name for thread in threading.enumerate()], 30, "the end of its thread")
    assert running.fetch.fetched == CHUNK


def test_stop_ends_the_waits_for_the_rate_and_for_a_donor(donor: Donor, target: Path) -> None:
    stop = threading.Event()
    manifest = pin(donor.pins, {"large": os.urandom(3 * CHUNK)})
    slow = Running(Fetch(donor.address, TOKEN, manifest, target, 10.0, stop))
    wait_until(lambda: slow.fetch.fetched, 30, "the first bytes")
    absent = Running(Fetch("127.0.0.1:1", TOKEN, manifest, target.with_name("other"), None, stop))
    stop.set()
    assert isinstance(slow.join(30), TransferStopped) and isinstance(absent.join(30), TransferStopped)
    with pytest.raises(TransferStopped):
        Fetch(donor.address, TOKEN, manifest, target, None, stop).run()


def test_the_rate_is_kept(donor: Donor, target: Path) -> None:
    manifest = pin(donor.pins, {name: os.urandom(10 * CHUNK) for name in "abc"})
    done = Fetch(donor.address, TOKEN, manifest, target, 60 * CHUNK).run()
    assert 0.45 < done.seconds < 2.5, "half a second, and what a busy machine adds"


def test_the_pace_counts_bytes_and_saves_no_idle_time_up() -> None:
    pace = Pace(100.0)
    assert pace.after(50, 10.0) == pytest.approx(0.5)
    assert pace.after(50, 10.2) == pytest.approx(0.8)
    assert pace.after(100, 50.0) == pytest.approx(1.0)
    assert Pace(None).after(10**9, 0.0) == 0.0
    assert [Pace(rate).chunk_bytes for rate in (None, 1e9, 100_000.0, 1.0)] == [1 << 20, 1 << 20, 50_000, 4096]


def test_a_slow_copy_asks_for_small_chunks(donor: Donor, target: Path) -> None:
    """A chunk of the usual size would take longer than a pin lasts that nobody reads from."""
    Fetch(donor.address, TOKEN, pin(donor.pins, {"small": b"x" * 1000}), target, 10_000.0).run()
    assert donor.tickets[0].chunk == 5_000


def test_a_full_disk_is_said_to_be_full(donor: Donor, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = pin(donor.pins, {"a": b"a", "large": os.urandom(3 * CHUNK)})
    plain = transfer._Part.write

    def fail(part: transfer._Part, data: pa.Buffer) -> None:
        if part.length >= CHUNK:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(part, data)

    with monkeypatch.context() as patch:
        patch.setattr(transfer._Part, "write", fail)
        with pytest.raises(TransferError, match=r"disk is full: the 49153 bytes of the pin p do not fit.*Make room"):
            Fetch(donor.address, TOKEN, manifest, target).run()
    assert Fetch(donor.address, TOKEN, manifest, target).run().reused > CHUNK
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 0))
        with pytest.raises(TransferError, match=r"disk is full.*49153 bytes are needed"):
            Fetch(donor.address, TOKEN, manifest, target.with_name("other")).run()


def test_a_target_that_cannot_be_written_is_named(donor: Donor, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_bytes(b"a file")
    with pytest.raises(TransferError, match=r"cannot write to .*sums\.0#2"):
        Fetch(donor.address, TOKEN, pin(donor.pins, TREE), target).run()


def serve_alone(root: Path) -> None:
    """The donor process: prints its address and ends when its input does."""
    pins = Pins(root, 1, 60)
    (pins.directory("frozen") / "large").write_bytes(os.urandom(40_000_000))
    pins.seal("frozen")
    donor = Donor(pins)
    print(donor.address, flush=True)
    sys.stdin.read()
    donor.shutdown()


if __name__ == "__main__":
    serve_alone(Path(sys.argv[1]))
