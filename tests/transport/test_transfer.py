"""State moves between nodes whole and unchanged, whatever happens to the donor, the network and the disk on the way."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import TOKEN, wait_until
from unbroken.errors import UnbrokenError
from unbroken.security.certificates import credentials
from unbroken.transport.auth import open_client, server_options
from unbroken.transport.state import pins as pins_module
from unbroken.transport.state import transfer
from unbroken.transport.state.donor_calls import PinLost, TransferError, TransferStopped, ask_manifest, release_pin
from unbroken.transport.state.pins import (
    CHUNK_SCHEMA,
    EMPTY_SHA256,
    Manifest,
    PinError,
    PinGone,
    PinLimit,
    PinnedFile,
    Pins,
)
from unbroken.transport.state.transfer import Fetch, Pace

CHUNK = 16_384
Batches = Iterator[pa.RecordBatch]
TREE = {"checkpoint/offsets/1": b"v1", "checkpoint/.1.crc": b"", "outbox/s.0>t.0/1.arrow": bytes(range(256)) * 300}


class Donor(flight.FlightServerBase):  # type: ignore[misc]
    """A server that wires pins as a node does; ``bend`` does to the contents what a fault would do."""

    def __init__(self, pins: Pins, port: int = 0, bend: Callable[[Batches], Batches] | None = None) -> None:
        super().__init__(f"grpc+tls://127.0.0.1:{port}", **server_options(TOKEN))
        self.pins = pins
        self.bend = bend
        self.tickets: list[dict[str, Any]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def do_action(self, context: Any, action: Any) -> Any:
        handlers = {**self.pins.actions(), "pin": self._pin}
        return [json.dumps(handlers[action.type](json.loads(action.body.to_pybytes()))).encode()]

    def _pin(self, question: dict[str, Any]) -> Any:
        if question["pin"] == "other":
            return {"pin": "p", "facts": {}, "files": []}
        return {"files": [["../x", 0, EMPTY_SHA256]]} if question["bad"] else self.pins.directory(question["pin"])

    def do_get(self, context: Any, ticket: Any) -> Any:
        question = json.loads(ticket.ticket)
        self.tickets.append(question)
        if self.bend is None:
            return self.pins.stream(question)
        batches = self.pins.chunks(question["pin"], question["paths"], question["offset"])
        return flight.GeneratorStream(CHUNK_SCHEMA, self.bend(batches))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pins(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Pins:
    monkeypatch.setattr(pins_module, "CHUNK_BYTES", CHUNK)
    return Pins(tmp_path / "pins", 3, 60.0, clock)


@pytest.fixture
def donor(pins: Pins) -> Iterator[Donor]:
    server = Donor(pins)
    yield server
    server.shutdown()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "incoming" / "sums.0#2"


def write(root: Path, tree: dict[str, bytes]) -> None:
    for path, content in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)


def pin(pins: Pins, tree: dict[str, bytes], name: str = "p") -> Manifest:
    write(pins.directory(name), tree)
    return pins.seal(name, {"version": 7})


def tree_of(root: Path) -> dict[str, bytes]:
    """Everything below ``root``; an empty directory would show up as well."""
    found = {str(path.relative_to(root)): path for path in root.rglob("*")}
    return {
        name: b"directory" if path.is_dir() else path.read_bytes()
        for name, path in found.items()
        if not (path.is_dir() and any(path.iterdir()))
    }


def pinned(path: str, content: bytes = b"x") -> PinnedFile:
    return PinnedFile(path, len(content), hashlib.sha256(content).hexdigest())


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
            fetch = Fetch(donor.address, TOKEN, Manifest.from_json(manifest.to_json()), Path(directory))
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
    assert [len(ticket["paths"]) for ticket in donor.tickets] == [7, 7, 6]


def test_manifest_and_facts_are_asked_for_and_the_pin_released(donor: Donor, target: Path) -> None:
    manifest = pin(donor.pins, TREE)
    asked = ask_manifest(donor.address, TOKEN, "p", 5)
    assert asked == manifest and asked.facts == {"version": 7}
    Fetch(donor.address, TOKEN, asked, target).run()
    release_pin(donor.address, TOKEN, "p", 5)
    release_pin(donor.address, TOKEN, "p", 5)
    assert donor.pins.ids() == []
    with pytest.raises(PinLost, match="the pin p is gone"):
        ask_manifest(donor.address, TOKEN, "p", 5)
    assert tree_of(target) == TREE


def test_answers_that_are_no_manifest_and_refusals_are_transfer_errors(donor: Donor) -> None:
    with pytest.raises(TransferError, match=r"cannot be used: the path '\.\./x' leaves"):
        ask_manifest(donor.address, TOKEN, "p", 5, "pin", {"bad": True})
    with pytest.raises(TransferError, match="asked for the pin other and answered with p"):
        ask_manifest(donor.address, TOKEN, "other", 5, "pin")
    for name in "abc":
        donor.pins.directory(name)
    with pytest.raises(TransferError, match=r"refused: this node already holds 3 pins.*try again"):
        ask_manifest(donor.address, TOKEN, "d", 5, "pin", {"bad": False})
    with pytest.raises(TransferError, match=r"refused: the pin a is not sealed"):
        ask_manifest(donor.address, TOKEN, "a", 5)


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
        cut.wait(10)
        raise flight.FlightUnavailableError("going down")

    tree = {"large": os.urandom(20 * CHUNK)}
    manifest = pin(pins, tree)
    first = Donor(pins, bend=interrupted)
    running = Running(Fetch(first.address, TOKEN, manifest, target))
    assert reached.wait(10)
    port = first.port
    cut.set()
    first.shutdown()
    second = Donor(pins, port)
    assert running.join() is None
    second.shutdown()
    assert tree_of(target) == tree
    assert second.tickets[0]["offset"] == 3 * CHUNK
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
    assert [ticket["offset"] for ticket in donor.tickets] == [0, CHUNK, 2 * CHUNK]
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
        ask_manifest(donor.address, TOKEN[:-1], "p", 2)
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
    process.communicate(timeout=10)


def test_a_frozen_donor_is_given_up_and_used_again_when_it_thaws(process: subprocess.Popen[str], target: Path) -> None:
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    manifest = ask_manifest(address, TOKEN, "frozen", 10)
    fetch = Fetch(address, TOKEN, manifest, target, 20e6, patience_s=1, call_s=0.4)
    running = Running(fetch)
    wait_until(lambda: fetch.fetched, 10, "the first bytes")
    process.send_signal(signal.SIGSTOP)
    assert "sent nothing of the pin frozen for 1 s" in str(running.join())
    stopped = threading.Event()
    other = Running(Fetch(address, TOKEN, manifest, target.with_name("other"), None, stopped, patience_s=60))
    stopped.set()
    assert isinstance(other.join(1.5), TransferStopped)
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
        free.wait(10)

    donor.bend = hanging
    running = Running(
        Fetch(donor.address, TOKEN, pin(donor.pins, {"large": os.urandom(2 * CHUNK)}), target, None, stop)
    )
    assert reached.wait(10)
    wait_until(lambda: running.fetch.fetched, 10, "the first bytes")
    stop.set()
    assert isinstance(running.join(1.5), TransferStopped)
    free.set()
    name = f"fetch-from-{donor.address}"
    wait_until(lambda: name not in [thread.name for thread in threading.enumerate()], 5, "the end of its thread")
    assert running.fetch.fetched == CHUNK


def test_stop_ends_the_waits_for_the_rate_and_for_a_donor(donor: Donor, target: Path) -> None:
    stop = threading.Event()
    manifest = pin(donor.pins, {"large": os.urandom(3 * CHUNK)})
    slow = Running(Fetch(donor.address, TOKEN, manifest, target, 10.0, stop))
    wait_until(lambda: slow.fetch.fetched, 10, "the first bytes")
    absent = Running(Fetch("127.0.0.1:1", TOKEN, manifest, target.with_name("other"), None, stop))
    stop.set()
    assert isinstance(slow.join(1.5), TransferStopped) and isinstance(absent.join(1.5), TransferStopped)
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
    assert donor.tickets[0]["chunk"] == 5_000


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


# --- paths ---

ESCAPES = [
    "",
    "/etc/passwd",
    "..",
    "../x",
    "a/../../x",
    "a/./b",
    "a//b",
    "a/",
    ".",
    "a\0b",
    "x" * 300,
    "a/" * 600 + "a",
]


@pytest.mark.parametrize("path", [*ESCAPES, 5, None, "\udc80"])
def test_a_manifest_with_a_path_that_leads_elsewhere_is_refused(path: Any) -> None:
    data = {"pin": "p", "facts": {}, "files": [[path, 0, EMPTY_SHA256]]}
    with pytest.raises(UnbrokenError, match="path"):
        Manifest.from_json(data)


@pytest.mark.parametrize(
    "files",
    [
        [["a", 1, "0" * 64], ["a", 1, "0" * 64]],
        [["a", 1, "0" * 64], ["a/b/c", 1, "0" * 64]],
        [["a", -1, "0" * 64]],
        [["a", True, "0" * 64]],
        [["a", 1, "zz"]],
        [["a", 0, "0" * 64]],
        [["a", 1]],
        ["abc"],
        None,
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(files: Any) -> None:
    with pytest.raises(PinError):
        Manifest.from_json({"pin": "p", "facts": {}, "files": files})
    garbages: list[Any] = [None, [], "text", {"pin": "../p", "facts": {}, "files": []}]
    for garbage in garbages:
        with pytest.raises(PinError):
            Manifest.from_json(garbage)


def test_names_of_parts_cannot_be_used_to_overwrite_files(target: Path) -> None:
    victim = pinned("a")
    clash = pinned(f"a.{victim.sha256[:16]}.part")
    with pytest.raises(TransferError, match="name of a partial file"):
        Fetch("127.0.0.1:1", TOKEN, Manifest("p", (victim, clash)), target).run()


@pytest.mark.parametrize("path", [*ESCAPES, "unknown", 5, None])
def test_the_donor_serves_nothing_but_what_is_pinned(donor: Donor, tmp_path: Path, path: Any) -> None:
    pin(donor.pins, TREE)
    client = open_client(donor.address, credentials(TOKEN))
    for question in ({"path": path, "offset": 0}, {"paths": ["checkpoint/offsets/1", path], "offset": 0}):
        ticket = flight.Ticket(json.dumps({"pin": "p", **question}).encode())
        with pytest.raises(flight.FlightServerError, match=r"path|has no file"):
            client.do_get(ticket, flight.FlightCallOptions(timeout=5)).read_all()
    client.close()


@pytest.mark.parametrize(
    "question",
    [{"paths": []}, {"paths": "a"}, {"paths": ["a"] * 1001}, {"path": "a", "offset": 2}, {"path": "a", "chunk": 9}],
)
def test_questions_beyond_the_bounds_are_refused(pins: Pins, question: dict[str, Any]) -> None:
    pin(pins, {"a": b"a"})
    with pytest.raises(PinError):
        pins.stream({"pin": "p", **question})


def test_one_file_from_an_offset_on(pins: Pins) -> None:
    pin(pins, {"a": bytes(range(100)) * 400})
    table = pa.Table.from_batches(pins.chunks("p", ["a"], 39_990))
    assert table.to_pydict() == {"file": [0], "offset": [39_990], "data": [bytes(range(90, 100))]}
    assert list(pins.chunks("p", ["a"], 40_000)) == []
    assert [batch.nbytes // 4096 for batch in pins.chunks("p", ["a"], 30_000, 4096)] == [1, 1, 0]


# --- pins ---


def test_links_and_special_files_cannot_be_pinned(pins: Pins, tmp_path: Path) -> None:
    makers: list[Callable[[Path], None]] = [lambda p: p.symlink_to(tmp_path), lambda p: p.symlink_to("x"), os.mkfifo]
    for number, make in enumerate(makers):
        directory = pins.directory(f"p{number}")
        (directory / "sub").mkdir()
        make(directory / "sub" / "odd")
        with pytest.raises(PinError, match=r"'sub/odd' cannot be pinned"):
            pins.seal(f"p{number}", {})
    assert pins.ids() == [] and list((tmp_path / "pins").iterdir()) == []


def test_a_link_put_into_a_pin_later_is_not_followed(pins: Pins, tmp_path: Path) -> None:
    write(tmp_path / "outside", {"secret": b"secret"})
    files = pins.directory("p")
    write(files, {"secret": b"public", "sub/secret": b"public"})
    pins.seal("p", {})
    (files / "secret").unlink()
    (files / "secret").symlink_to(tmp_path / "outside" / "secret")
    shutil.rmtree(files / "sub")
    (files / "sub").symlink_to(tmp_path / "outside")
    for path in ("secret", "sub/secret"):
        with pytest.raises(PinError, match="symbolic link"):
            list(pins.chunks("p", [path]))


def test_a_file_that_grows_is_served_as_it_was_and_one_that_shrinks_is_refused(pins: Pins, tmp_path: Path) -> None:
    write(tmp_path, {"log": b"entry"})
    os.link(tmp_path / "log", pins.directory("p") / "log")
    pins.seal("p", {})
    with (tmp_path / "log").open("ab") as file:
        file.write(b" and another")
    assert [batch.column(2).to_pylist() for batch in pins.chunks("p", ["log"])] == [[b"entry"]]
    os.truncate(tmp_path / "log", 2)
    with pytest.raises(PinError, match="shorter"):
        list(pins.chunks("p", ["log"]))


def test_pins_are_limited_expire_and_are_released(pins: Pins, clock: Clock, tmp_path: Path) -> None:
    for name in "abc":
        pin(pins, TREE, name)
    with pytest.raises(PinLimit, match="at most 3"):
        pins.directory("d")
    clock.now = 40
    list(pins.chunks("b", ["checkpoint/offsets/1"]))
    assert pins.expire(59.9) == []
    assert pins.expire(60) == ["a", "c"]
    assert pins.release("b") and not pins.release("b")
    assert list((tmp_path / "pins").iterdir()) == []
    with pytest.raises(PinGone, match="pin a is gone"):
        pins.manifest("a")
    for name in "abc":
        pin(pins, TREE, name)
    clock.now = 200
    pins.directory("d")  # those whose time is up do not count
    assert pins.ids() == ["d"]


def test_a_pin_is_made_once_and_sealed_once(pins: Pins, tmp_path: Path) -> None:
    directory = pins.directory("p")
    with pytest.raises(PinError, match="exists already"):
        pins.directory("p")
    with pytest.raises(PinError, match="not sealed yet"):
        pins.manifest("p")
    manifest = pins.seal("p", {"base": 3})
    with pytest.raises(PinError, match="sealed already"):
        pins.seal("p", {})
    with pytest.raises(PinGone):
        pins.seal("q", {})
    assert Manifest.from_json(json.loads((directory.parent / "manifest.json").read_text())) == manifest
    for name in ("", "..", "a/b", ".hidden", "x" * 200):
        with pytest.raises(PinError, match="name of a pin"):
            pins.directory(name)


def test_clear_removes_what_an_earlier_process_left(pins: Pins, tmp_path: Path) -> None:
    pins.clear()  # nothing there yet
    write(tmp_path / "pins", {".left/files/a": b"a", "left@1/files/a": b"a", "stray": b"s"})
    pin(pins, TREE)
    pins.clear()
    assert list((tmp_path / "pins").iterdir()) == [] and pins.ids() == []


def test_many_threads_make_and_release_pins(tmp_path: Path) -> None:
    pins = Pins(tmp_path / "pins", 4, 60)
    unexpected: list[Exception] = []

    def work(number: int) -> None:
        dice = random.Random(number)
        for _ in range(30):
            name = f"p{dice.randrange(6)}"
            try:
                directory = pins.directory(name)
                with contextlib.suppress(OSError):  # another thread released it while it was filled
                    write(directory, {"a": b"a", "b/c": b"c"})
                pins.seal(name, {})
                list(pins.chunks(name, ["a", "b/c"]))
                pins.release(name)
            except PinError:  # another thread was there first
                pins.release(f"p{dice.randrange(6)}")
            except Exception as error:
                unexpected.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert unexpected == []
    pins.clear()
    assert list((tmp_path / "pins").iterdir()) == []


def serve_alone(root: Path) -> None:
    """The donor process: prints its address and ends when its input does."""
    pins = Pins(root, 1, 60)
    (pins.directory("frozen") / "large").write_bytes(os.urandom(40_000_000))
    pins.seal("frozen", {})
    donor = Donor(pins)
    print(donor.address, flush=True)
    sys.stdin.read()
    donor.shutdown()


if __name__ == "__main__":
    serve_alone(Path(sys.argv[1]))
