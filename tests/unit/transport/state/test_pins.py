"""A donor serves what is pinned and nothing else, and a manifest leads nowhere else."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from kit.pinned_state import CHUNK, TREE, Clock, Donor, pin, pinned, write, written
from kit.pinned_state import clock as clock
from kit.pinned_state import donor as donor
from kit.pinned_state import pins as pins
from kit.pinned_state import target as target
from kit.support import TOKEN
from unbroken.codecs.codec import Undecodable
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ingress_log import Admission
from unbroken.security.certificates import credentials
from unbroken.transport.auth import open_client
from unbroken.transport.calls import PinTicket, ticket_of
from unbroken.transport.state.donor_calls import TransferError
from unbroken.transport.state.pins import (
    EMPTY_SHA256,
    MANIFEST,
    Manifest,
    PinError,
    PinGone,
    PinLimit,
    Pins,
)
from unbroken.transport.state.transfer import Fetch

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
    with pytest.raises(UnbrokenError, match="path"):
        MANIFEST.decode(written([[path, 0, EMPTY_SHA256]]))


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
    with pytest.raises(Undecodable):
        MANIFEST.decode(written(files))
    for garbage in (b"", b"null", b"manifest/1 null", b"manifest/1 []", b"manifest/2 {}", written([], "../p")):
        with pytest.raises(Undecodable):
            MANIFEST.decode(garbage)


def test_names_of_parts_cannot_be_used_to_overwrite_files(target: Path) -> None:
    victim = pinned("a")
    clash = pinned(f"a.{victim.sha256[:16]}.part")
    with pytest.raises(TransferError, match="name of a partial file"):
        Fetch("127.0.0.1:1", TOKEN, Manifest("p", (victim, clash)), target).run()


@pytest.mark.parametrize("path", [*ESCAPES, "unknown"])
def test_the_donor_serves_nothing_but_what_is_pinned(donor: Donor, tmp_path: Path, path: str) -> None:
    pin(donor.pins, TREE)
    client = open_client(donor.address, credentials(TOKEN))
    for paths in ((path,), ("checkpoint/offsets/1", path)):
        ticket = ticket_of(PinTicket("p", paths, 0, CHUNK))
        with pytest.raises(flight.FlightServerError, match=r"path|has no file"):
            client.do_get(ticket, flight.FlightCallOptions(timeout=5)).read_all()
    client.close()


@pytest.mark.parametrize(
    "asked",
    [{"paths": ()}, {"paths": ("a",) * 1001}, {"offset": 2}, {"offset": -1}, {"chunk": 9}],
)
def test_questions_beyond_the_bounds_are_refused(pins: Pins, asked: dict[str, Any]) -> None:
    pin(pins, {"a": b"a"})
    with pytest.raises(PinError):
        pins.stream(replace(PinTicket("p", ("a",), 0, CHUNK), **asked))


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
            pins.seal(f"p{number}")
    assert pins.ids() == [] and list((tmp_path / "pins").iterdir()) == []


def test_a_link_put_into_a_pin_later_is_not_followed(pins: Pins, tmp_path: Path) -> None:
    write(tmp_path / "outside", {"secret": b"secret"})
    files = pins.directory("p")
    write(files, {"secret": b"public", "sub/secret": b"public"})
    pins.seal("p")
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
    pins.seal("p")
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
    manifest = pins.seal("p", 3, Admission("leader", 1, 2, 3, "s"))
    with pytest.raises(PinError, match="sealed already"):
        pins.seal("p")
    with pytest.raises(PinGone):
        pins.seal("q")
    assert MANIFEST.decode((directory.parent / "manifest.json").read_bytes()) == manifest
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
                pins.seal(name)
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
