"""Tentative units of file sinks: apart from the stable ones, once, and gone when those are there."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kit.delivering import STREAM, Deliverer, Orders, deliver, guess, header, tentative, unit
from unbroken.connectors.files.publication import write_temporary
from unbroken.connectors.files.sinks import JsonLines, Parquet, TentativeFile, unit_in
from unbroken.connectors.files.tentative_files import STABLE, TENTATIVE, TentativeFiles
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.run import RunIdentity

OTHER = "totals.1>out.0"


def stable_units(path: Path) -> list[int]:
    """The stable units as a reader of the directory sees them."""
    return sorted(set(ds.dataset(path, format="parquet").to_table()["unit"].to_pylist())) if any_file(path) else []


def any_file(path: Path) -> bool:
    return next(path.glob("*.parquet"), None) is not None


def pieces(path: Path, stream: str = STREAM) -> list[tuple[int, int]]:
    """The tentative files of a stream: the pulses after which and up to which they are."""
    directory = path / TENTATIVE / stream.replace(">", "-to-")
    found = sorted(os.listdir(directory)) if directory.is_dir() else []
    return [(int(name[17:27]), int(name[:10])) for name in found if not name.startswith(".")]


@pytest.mark.parametrize("kind", [Parquet, JsonLines])
def test_they_are_apart_and_are_replaced(tmp_path: Path, kind: type[Parquet] | type[JsonLines]) -> None:
    sink = kind(tmp_path)
    assert sink.tentative and sink.occupied() is None
    first, second = sink.open(tmp_path), sink.open(tmp_path)
    assert first.deliver(header(4), unit(4))
    assert first.deliver_tentative(tentative(4, 5), guess(5)) and second.deliver_tentative(tentative(5, 7), guess(7))
    assert second.deliver_tentative(tentative(7, 8, OTHER), guess(8, stream=OTHER))
    directory = tmp_path / TENTATIVE / "totals.0-to-out.0"
    assert sorted(os.listdir(directory)) == [
        f"0000000005-after-0000000004.{kind.suffix}",
        f"0000000007-after-0000000005.{kind.suffix}",
    ]
    told = kind(tmp_path).occupied()
    assert told is not None and "earlier run" in told
    assert second.deliver(header(5), unit(5)) and pieces(tmp_path) == [(5, 7)]
    assert second.deliver(header(6), unit(6).slice(0, 0)) and pieces(tmp_path) == [(5, 7)], "7 is not replaced yet"
    assert first.deliver(header(7), unit(7).slice(0, 0)) and pieces(tmp_path) == []
    assert len(pieces(tmp_path, OTHER)) == 1, "another stream's"
    assert len(os.listdir(tmp_path / STABLE)) == 1


def test_readers_of_the_directory_do_not_see_them(tmp_path: Path) -> None:
    writer = Parquet(tmp_path).open(tmp_path)
    writer.deliver(header(1), unit(1))
    writer.deliver_tentative(tentative(1, 3), guess(3))
    assert set(pq.read_table(tmp_path)["unit"].to_pylist()) == {1}
    assert stable_units(tmp_path) == [1]
    (path,) = tmp_path.glob(f"{TENTATIVE}/*/*.parquet")
    assert unit_in(pq.read_schema(path)) == TentativeFile(StreamId.parse(STREAM), "", 1, 3)
    assert set(pq.read_table(path)["unit"].to_pylist()) == {-3}


def test_a_pulse_that_is_there_is_not_delivered_again(tmp_path: Path) -> None:
    first, second = Parquet(tmp_path).open(tmp_path), Parquet(tmp_path).open(tmp_path)
    assert first.deliver_tentative(tentative(2, 5), guess(5))
    assert not second.deliver_tentative(tentative(2, 5), guess(5))
    assert not second.deliver_tentative(tentative(3, 5), guess(5)), "another one of the same pulse"
    assert not second.deliver_tentative(tentative(2, 4), guess(4)), "one that covers it"
    assert first.deliver(header(6), unit(6).slice(0, 0)) and pieces(tmp_path) == []
    assert not second.deliver_tentative(tentative(5, 6), guess(6)), "a stable one, though it has no rows"
    assert not second.deliver_tentative(tentative(2, 3), guess(3))
    assert second.deliver_tentative(tentative(6, 7), guess(7).slice(0, 0)) and pieces(tmp_path) == []
    assert second.deliver_tentative(tentative(6, 8), guess(8)) and pieces(tmp_path) == [(6, 8)]


def test_one_that_covers_more_takes_the_place_of_others(tmp_path: Path) -> None:
    """As from a replica that has begun again and took all pulses at once."""
    writer = Parquet(tmp_path).open(tmp_path)
    for since in (1, 2, 3):
        assert writer.deliver_tentative(tentative(since, since + 1), guess(since + 1))
    assert writer.deliver_tentative(tentative(2, 6), guess(6))
    assert pieces(tmp_path) == [(1, 2), (2, 6)]
    assert writer.deliver_tentative(tentative(5, 7), guess(7)) and pieces(tmp_path) == [(1, 2), (2, 6), (5, 7)]


def test_generations_of_the_code_are_one_stream(tmp_path: Path) -> None:
    writer = Parquet(tmp_path).open(tmp_path)
    assert writer.deliver_tentative(tentative(1, 2, "totals@2.0>out.0"), guess(2))
    assert not writer.deliver_tentative(tentative(1, 2), guess(2)) and pieces(tmp_path) == [(1, 2)]
    assert writer.deliver(header(2, "totals@3.0>out.0"), unit(2)) and pieces(tmp_path) == []


def test_a_mark_of_an_earlier_run_does_not_count(tmp_path: Path) -> None:
    Parquet(tmp_path).open(tmp_path).deliver(header(100), unit(100))
    next(tmp_path.glob("*.parquet")).unlink()
    sink = Parquet(tmp_path)
    assert sink.occupied() is None
    sink.run = RunIdentity("later")
    writer = sink.open(tmp_path)
    assert writer.deliver_tentative(tentative(0, 1), guess(1)) and pieces(tmp_path) == [(0, 1)]
    assert writer.deliver(header(1), unit(1)) and pieces(tmp_path) == []
    assert writer.deliver_tentative(tentative(1, 2), guess(2))


def test_without_tentative_units_nothing_is_kept_for_them(tmp_path: Path) -> None:
    sink = Parquet(tmp_path)
    sink.tentative = False
    writer = sink.open(tmp_path)
    assert writer.deliver(header(1), unit(1)) and len(list(tmp_path.glob("*.parquet"))) == 1
    assert not (tmp_path / STABLE).exists() and not (tmp_path / TENTATIVE).exists()


class Died(BaseException):
    """A writer that is gone between two steps."""


def die(*_: object) -> None:
    raise Died


@pytest.mark.parametrize("step", ["mark", "tidy"])
def test_who_finds_a_stable_unit_that_has_replaced_nothing_does_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def dying() -> None:
        dead = Parquet(tmp_path).open(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(TentativeFiles, step, die)
            with pytest.raises(Died):
                dead.deliver(header(2), unit(2))
        assert stable_units(tmp_path) == [2] and pieces(tmp_path) == [(0, 1), (1, 2), (2, 3)], "both are there"

    def some() -> None:
        writer = Parquet(tmp_path).open(tmp_path)
        for pulse in (1, 2, 3):
            assert writer.deliver_tentative(tentative(pulse - 1, pulse), guess(pulse))
        writer.close()

    some()
    dying()
    again = Parquet(tmp_path).open(tmp_path)
    if step == "tidy":
        assert pieces(tmp_path) == [(2, 3)], "opening is enough"
    assert not again.deliver(header(2), unit(2))
    assert stable_units(tmp_path) == [2] and pieces(tmp_path) == [(2, 3)]


def test_a_tentative_unit_that_comes_too_late_and_whose_writer_died_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = Parquet(tmp_path).open(tmp_path), Parquet(tmp_path).open(tmp_path)
    for last_word in (
        lambda: quick.deliver(header(3), unit(3)),
        lambda: Parquet(tmp_path).open(tmp_path),
        lambda: quick.deliver_tentative(tentative(0, 1), guess(1)),
    ):
        (directory := tmp_path / TENTATIVE / "totals.0-to-out.0").mkdir(parents=True, exist_ok=True)
        real = TentativeFiles.tidy
        monkeypatch.setattr(TentativeFiles, "tidy", die)
        with pytest.raises(Died):
            slow.deliver_tentative(tentative(3, 4), guess(4))
        TentativeFiles(tmp_path, "parquet", "").mark(header(4))
        monkeypatch.setattr(TentativeFiles, "tidy", real)
        assert pieces(tmp_path) == [(3, 4)]
        last_word()
        assert pieces(tmp_path) == [] and directory.is_dir()
        for mark in (tmp_path / STABLE).iterdir():
            mark.unlink()


def test_what_is_half_written_is_removed_when_it_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unbroken.connectors.files.publication.LEFTOVER_S", 0.0)
    writer = Parquet(tmp_path).open(tmp_path)
    writer.deliver_tentative(tentative(0, 1), guess(1))
    directory = tmp_path / TENTATIVE / "totals.0-to-out.0"
    old = write_temporary(directory, "x", lambda file: None)
    Parquet(tmp_path).open(tmp_path)
    assert old.exists()
    Parquet(tmp_path).open(tmp_path)
    assert not old.exists() and pieces(tmp_path) == [(0, 1)]


@pytest.mark.parametrize("seed", range(4))
def test_writers_at_the_same_time(tmp_path: Path, seed: int) -> None:
    """Each has its own tentative units, cut as it likes; two deliver the stable ones later."""
    last, wins = 24, list[tuple[int, int]]()

    def tentatively(number: int) -> None:
        chance, writer, since = random.Random(f"{seed} {number}"), Parquet(tmp_path).open(tmp_path), 0
        while since < last:
            pulse = min(last, since + chance.choice([1, 1, 2, 3]))
            if writer.deliver_tentative(tentative(since, pulse), guess(pulse)):
                wins.append((since, pulse))
            since = pulse

    def finally_(_: int) -> None:
        writer = Parquet(tmp_path).open(tmp_path)
        for number in range(1, last + 1):
            writer.deliver(header(number), unit(number))

    def run(*work: Callable[[int], None]) -> None:
        with ThreadPoolExecutor(len(work)) as pool:
            for done in [pool.submit(each, number) for number, each in enumerate(work)]:
                done.result(60)

    run(tentatively, tentatively, tentatively)
    there = pieces(tmp_path)
    assert set(there) <= set(wins) and there[-1][1] == last
    assert len({pulse for _, pulse in there}) == len(there), "no pulse is completed by two"
    assert not [a for a in there for b in there if a != b and b[0] <= a[0] and a[1] <= b[1]]
    covered = {pulse for since, end in there for pulse in range(since + 1, end + 1)}
    assert covered == set(range(1, last + 1)), "what was taken away is covered by something else"
    run(finally_, finally_, tentatively, tentatively)
    assert stable_units(tmp_path) == list(range(1, last + 1)) and pieces(tmp_path) == []


STEPS = [
    ("after _publish", [2]),
    ("before _tentative.tidy", [2]),
    ("after _tentative.mark", [3]),
    ("before _tentative.put", [4, 5]),
    ("before _tentative.tidy", [5, 7]),
    ("after _tentative.put", [5, 7]),
]


@pytest.mark.servers
@pytest.mark.parametrize(("step", "at"), STEPS)
def test_a_process_is_killed_between_two_steps(tmp_path: Path, step: str, at: list[int]) -> None:
    units = [[0, 1], [1, 3], [1], [2], [3, 4], [3], [4, 5], [5, 7], [4], [5]]
    orders = Orders("parquet", {"path": str(tmp_path)}, units=units, step=step, at=at)
    with Deliverer(orders) as killed:
        killed.killed()
    reached = units.index(at)
    done = [what[0] for what in units[:reached] if len(what) == 1]
    assert set(done) <= set(stable_units(tmp_path)) <= {*done, at[0]}
    writer = Parquet(tmp_path).open(tmp_path)
    for what in units:
        deliver(writer, what)
    assert stable_units(tmp_path) == [1, 2, 3, 4, 5]
    assert pieces(tmp_path) == [(5, 7)]
    writer.deliver(header(6), unit(6).slice(0, 0))
    writer.deliver(header(7), unit(7))
    assert pieces(tmp_path) == [] and stable_units(tmp_path) == [1, 2, 3, 4, 5, 7]


@pytest.mark.servers
def test_a_frozen_process_adds_nothing_that_was_replaced_when_it_wakes(tmp_path: Path) -> None:
    orders = Orders(
        "parquet",
        {"path": str(tmp_path)},
        units=[[0, 1], [1, 2]],
        step="before _tentative.tidy",
        at=[1, 2],
        signal=signal.SIGSTOP,
    )
    with Deliverer(orders) as frozen:
        frozen.wait_frozen()
        writer = Parquet(tmp_path).open(tmp_path)
        for number in (1, 2, 3):
            assert writer.deliver(header(number), unit(number))
        frozen.wake()
        assert frozen.finished() == [[STREAM, 1, True], [STREAM, 2, False]]
    assert pieces(tmp_path) == [] and stable_units(tmp_path) == [1, 2, 3]
