"""The ingress log on disk: what was acknowledged comes back, whatever the end of a process left behind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unbroken.node.ingress import log_file as logfile
from unbroken.node.ingress.base import IngressBase
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.protocol.ingress.log import Entry


def entry(index: int, term: int = 1, body: bytes = b"body") -> Entry:
    return Entry(index, term, body, pulse=index, final=False)


def filled(directory: Path, *entries: Entry) -> IngressLogFile:
    log = IngressLogFile(directory)
    for each in entries:
        log.append(each)
    return log


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def done(index: int) -> IngressBase:
    return IngressBase(index, pulse=index)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry per file, and every base is worth writing."""
    monkeypatch.setattr(logfile, "SEGMENT_BYTES", 1)
    monkeypatch.setattr(logfile, "BASE_PULSES", 1)


@given(
    bodies=st.lists(st.tuples(st.binary(max_size=60), st.integers(0, 5), st.booleans()), max_size=12),
    restarts=st.sets(st.integers(0, 12)),
    segment_bytes=st.sampled_from([1, 50, 10_000]),
)
@settings(max_examples=60, deadline=None)
def test_entries_come_back_in_order(
    bodies: list[tuple[bytes, int, bool]],
    restarts: set[int],
    segment_bytes: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("log")
    written = [Entry(i, 1, body, pulse, final) for i, (body, pulse, final) in enumerate(bodies, start=1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logfile, "SEGMENT_BYTES", segment_bytes)
        log = IngressLogFile(directory)
        for each in written:
            if each.index in restarts:
                log.close()
                log = IngressLogFile(directory)
            log.append(each)
            # It has left the process, so that even kill -9 does not lose it.
            assert IngressLogFile(directory).read()[-1] == each
        log.close()
    assert IngressLogFile(directory).read() == written


def test_an_empty_log_has_no_entries_and_is_closed_twice(tmp_path: Path) -> None:
    log = IngressLogFile(tmp_path / "deep" / "log")
    assert log.read() == log.read_all() == log.read_waiting() == []
    assert log.base == IngressBase()
    log.rebase(done(5))
    log.close()
    log.close()


@pytest.mark.parametrize("kept", range(1, 9))
def test_a_torn_tail_is_left_out_wherever_it_is_torn(tmp_path: Path, kept: int) -> None:
    filled(tmp_path, entry(1), entry(2)).close()
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    filled(tmp_path / "other", entry(1), entry(2), entry(3, body=b"x" * 40)).close()
    longer = files(tmp_path / "other")[0].read_bytes()
    path.write_bytes(longer[: len(whole) + (len(longer) - len(whole)) * kept // 9])
    assert IngressLogFile(tmp_path).read() == [entry(1), entry(2)]


@pytest.mark.parametrize("rewritten", [1, 2, 3])
def test_what_follows_a_torn_tail_after_a_restart_is_read(tmp_path: Path, rewritten: int) -> None:
    """The first entry after the restart may have the index a file begins with: it must not go behind the tear."""
    filled(tmp_path, entry(1), entry(2), entry(3)).close()
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-2])
    again = filled(tmp_path, *(entry(index, term=2) for index in range(rewritten, 5)))
    expected = [entry(index, term=2 if index >= rewritten else 1) for index in range(1, 5)]
    assert again.read() == expected
    again.close()
    assert IngressLogFile(tmp_path).read() == expected


def test_a_log_that_begins_with_a_torn_entry(tmp_path: Path) -> None:
    filled(tmp_path, entry(1)).close()
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert IngressLogFile(tmp_path).read() == []
    filled(tmp_path, entry(1, term=2)).close()
    assert IngressLogFile(tmp_path).read() == [entry(1, term=2)]


def test_an_entry_of_a_higher_term_replaces_it_and_what_followed(tmp_path: Path) -> None:
    log = filled(tmp_path, *(entry(i) for i in range(1, 6)), entry(3, term=2, body=b"other"))
    assert log.read() == [entry(1), entry(2), entry(3, term=2, body=b"other")]
    log.append(entry(4, term=2))
    assert [(e.index, e.term) for e in log.read()] == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_a_new_leader_may_bring_an_entry_of_an_older_term(tmp_path: Path) -> None:
    """Its own tail, kept from before: what a leader in between wrote in that place is gone all the same."""
    log = filled(tmp_path, entry(1), entry(2, term=2), entry(3, term=2), entry(2, term=1, body=b"kept"))
    assert log.read() == [entry(1), entry(2, term=1, body=b"kept")]


def test_replacement_holds_across_files_and_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that begins in the middle of older ones must not be read before them."""
    monkeypatch.setattr(logfile, "SEGMENT_BYTES", 60)
    filled(tmp_path, *(entry(i) for i in range(1, 9))).close()
    assert len(files(tmp_path)) > 2
    filled(tmp_path, entry(4, term=2), entry(5, term=2)).close()
    assert [(e.index, e.term) for e in IngressLogFile(tmp_path).read()] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]
    filled(tmp_path, entry(4, term=3)).close()
    assert [(e.index, e.term) for e in IngressLogFile(tmp_path).read()] == [(1, 1), (2, 1), (3, 1), (4, 3)]


@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 2)), max_size=25),
    segment_bytes=st.sampled_from([1, 100]),
)
@settings(max_examples=80, deadline=None)
def test_disk_and_memory_agree(
    steps: list[tuple[int, bool, int]], segment_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any run of appends, replacements, restarts and trims leaves at least what is still needed, and nothing wrong."""
    directory = tmp_path_factory.mktemp("log")
    memory: list[Entry] = []
    base = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logfile, "SEGMENT_BYTES", segment_bytes)
        patch.setattr(logfile, "BASE_PULSES", 2)
        patch.setattr("os.fsync", lambda handle: None)  # the order of things is tested, not the disk
        log = IngressLogFile(directory)
        for term, (back, restart, trimmed) in enumerate(steps, start=1):
            if restart:
                log.close()
                log = IngressLogFile(directory)
            last = memory[-1].index if memory else 0
            index = max(base, last - back) + 1  # what is done with is never replaced
            memory = [*(e for e in memory if e.index < index), entry(index, term)]
            log.append(memory[-1])
            base = min(base + trimmed, index)
            log.rebase(done(base))
            assert log.base.index <= base
            assert log.read() == [e for e in memory if e.index > log.base.index]
            assert set(log.read_all()) <= set(memory)
        log.close()


def test_trimming_deletes_whole_files_and_only_those(tmp_path: Path, tiny: None) -> None:
    log = filled(tmp_path, *(entry(i) for i in range(1, 6)))
    assert not log.rebase(done(0))
    assert len(files(tmp_path)) == 5
    assert log.rebase(done(3))
    assert not log.rebase(done(2)), "a base never goes back"
    assert [e.index for e in log.read_all()] == [4, 5]
    log.rebase(done(5))
    assert [e.index for e in log.read_all()] == [5]  # the file in use stays
    assert log.read() == []
    log.append(entry(6))
    assert [e.index for e in log.read()] == [6]
    log.close()
    again = IngressLogFile(tmp_path)
    assert again.base == done(5) and [e.index for e in again.read()] == [6]


def test_a_file_with_an_entry_that_is_needed_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "SEGMENT_BYTES", 60)
    log = filled(tmp_path, *(entry(i) for i in range(1, 9)))
    log.rebase(done(3))
    left = [e.index for e in log.read_all()]
    assert left[0] <= 4 and left == list(range(left[0], 9))
    assert [e.index for e in log.read()] == [4, 5, 6, 7, 8]
    log.close()


def test_a_base_is_written_now_and_then_or_when_a_file_can_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path, *(entry(i) for i in range(1, 50)))
    assert [i for i in range(1, 50) if log.rebase(done(i))] == [20, 40]
    assert log.rebase(IngressBase(49, 49, finished=True))
    log.close()
    log = filled(tmp_path, entry(50), entry(51))
    assert log.rebase(done(50)), "the first file is not needed any more"
    assert len(files(tmp_path)) == 1


def test_entries_that_wait_before_the_base_are_kept(tmp_path: Path, tiny: None) -> None:
    log = filled(tmp_path, *(entry(i) for i in range(1, 8)))
    assert IngressBase(5, 5, waiting={"a": (3, 5), "b": ()}).done_through == 2
    log.rebase(IngressBase(5, 5, waiting={"a": (3, 5), "b": ()}))
    assert [e.index for e in log.read_all()] == [3, 4, 5, 6, 7]
    assert [e.index for e in log.read_waiting()] == [3, 5]
    assert [e.index for e in log.read()] == [6, 7]
    log.rebase(IngressBase(6, 6))
    assert [e.index for e in log.read_all()] == [7] and log.read_waiting() == []


def test_a_pin_is_the_log_of_its_moment(tmp_path: Path, tiny: None) -> None:
    log = filled(tmp_path / "log", *(entry(i) for i in range(1, 6)))
    log.rebase(IngressBase(3, 3, waiting={"a": (2,)}))
    log.pin(tmp_path / "pin")
    expected = (log.base, log.read(), log.read_waiting())
    for index in range(6, 9):
        log.append(entry(index))
    log.append(entry(5, term=2))
    log.rebase(done(4))
    pinned = IngressLogFile(tmp_path / "pin")
    assert (pinned.base, pinned.read(), pinned.read_waiting()) == expected
    pinned.append(entry(6, term=3))
    pinned.close()
    assert [(e.index, e.term) for e in log.read()] == [(5, 2)], "they go apart"
    assert [(e.index, e.term) for e in IngressLogFile(tmp_path / "pin").read()] == [(4, 1), (5, 1), (6, 3)]


def test_the_file_in_use_is_pinned_up_to_its_last_entry(tmp_path: Path) -> None:
    log = filled(tmp_path / "log", entry(1), entry(2))
    log.pin(tmp_path / "pin")
    log.append(entry(3))
    assert [e.index for e in IngressLogFile(tmp_path / "pin").read()] == [1, 2]
    assert IngressLogFile(tmp_path / "pin").base == IngressBase()
    log.close()
    log.pin(tmp_path / "closed")
    assert [e.index for e in IngressLogFile(tmp_path / "closed").read()] == [1, 2, 3]


def test_pinning_while_others_append_and_trim(tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)
    log = filled(tmp_path / "log", entry(1))
    last, ended = [1], threading.Event()

    def append() -> None:
        while not ended.is_set() and last[0] < 3_000:
            log.append(entry(last[0] + 1))
            last[0] += 1

    def trim() -> None:
        while not ended.is_set():
            log.rebase(done(last[0]))

    threads = [threading.Thread(target=work) for work in (append, trim)]
    for thread in threads:
        thread.start()
    try:
        for number in range(20):
            before = last[0]
            log.pin(tmp_path / f"pin{number}")
            pinned = IngressLogFile(tmp_path / f"pin{number}")
            indexes = [pinned.base.index, *(e.index for e in pinned.read())]
            assert indexes == list(range(indexes[0], indexes[-1] + 1)) and indexes[-1] >= before
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        log.close()
