"""Copies of state that come from other nodes: on disk before they are adopted, and before they count."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from unbroken.data import durability as durable_writes
from unbroken.data import files
from unbroken.flow.settings import Settings
from unbroken.node.ingress.base import IngressBase
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.replicas import directories as replica_dirs
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.state_copies import StateCopies
from unbroken.node.replicas.transfers import Transfers
from unbroken.protocol.events import FetchFailed, StateArrived
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.instructions import FetchState
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS

LOG = ReplicaId(INGRESS, 2)
STATE = ReplicaId(ShardId("sums", 0), 2)


class Newcomer:
    """A node that copies a replica, and the order of what it tells its disk."""

    def __init__(self, root: Path, durability: str, patch: pytest.MonkeyPatch) -> None:
        self.dirs = ReplicaDirs(root)
        self.dirs.identity()
        self.done: list[str] = []
        self.failing: str | None = None
        settings = Settings(durability=durability)
        self.events: list[Any] = []
        self.copies = StateCopies("c", self.dirs, settings, "", lambda _: None, lambda *_: 0, lambda *_: True)
        pinner: Any = None
        worker: Any = None
        self.transfers = Transfers(pinner, self.copies, worker, self._post, self._post)
        for module in (durable_writes, files, replica_dirs):
            patch.setattr(module, "force_path", self._force)
        patch.setattr(StateCopies, "_fetch", lambda copies, step, abandoned: self._copy(step))
        adopt = ReplicaDirs.adopt

        def adopted(dirs: ReplicaDirs, replica: ReplicaId, source: Path | None = None) -> None:
            self.done.append("adopt")
            adopt(dirs, replica, source)

        patch.setattr(ReplicaDirs, "adopt", adopted)

    def _force(self, path: Path | str) -> None:
        name = str(Path(path).relative_to(self.dirs.root))
        if name == self.failing:
            raise OSError(5, "the disk does not answer", str(path))
        self.done.append(name)

    def _post(self, event: Any) -> None:
        self.done.append("counts")
        self.events.append(event)

    def _copy(self, step: FetchState) -> tuple[int, dict[str, Any]]:
        place = self.dirs.incoming(step.replica)
        (place / "outbox").mkdir(parents=True, exist_ok=True)
        (place / "checkpoint" / "state").mkdir(parents=True, exist_ok=True)
        (place / "checkpoint" / "state" / "1.delta").write_bytes(b"rows")
        if step.replica == LOG:
            log = IngressLogFile(place / "log")
            log.append(*(Entry(index, 1, b"rows", index) for index in range(1, 4)))
            log.close()
            (place / "log" / "base.json").unlink(missing_ok=True)
            IngressBase(2, 2, waiting={"s": (1,)}).write(place / "log")
            self.done.clear()
        return 4, {}

    def fetch(self, replica: ReplicaId, held: bool = False, stop: bool = False) -> None:
        event = threading.Event()
        if stop:
            event.set()
        step = FetchState(replica, "a", replica.shard, held=held)
        self.transfers._copied(step, event, self.copies._copied(step, event))

    def before(self, what: str) -> set[str]:
        return set(self.done[: self.done.index(what)])


def below(root: Path, directory: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in [directory, *directory.rglob("*")]}


@pytest.mark.parametrize("replica", [LOG, STATE])
def test_a_copy_is_on_disk_before_it_is_adopted_and_its_name_before_it_counts(
    replica: ReplicaId, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newcomer = Newcomer(tmp_path / "c", "sync", monkeypatch)
    newcomer.fetch(replica)
    place = newcomer.dirs.replicas / str(replica)
    held = {f"incoming/{name.removeprefix('replicas/')}" for name in below(newcomer.dirs.root, place)}
    assert held <= newcomer.before("adopt")
    between = newcomer.done[newcomer.done.index("adopt") : newcomer.done.index("counts")]
    assert {"replicas", "."} <= set(between)
    assert isinstance(newcomer.events[0], StateArrived)


def test_files_are_forced_before_the_directories_that_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newcomer = Newcomer(tmp_path / "c", "sync", monkeypatch)
    newcomer.fetch(STATE)
    home = f"incoming/{STATE}"
    assert newcomer.done.index(f"{home}/checkpoint/state/1.delta") < newcomer.done.index(f"{home}/checkpoint/state")


def test_a_copy_that_is_kept_for_the_next_one_is_forced_with_its_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newcomer = Newcomer(tmp_path / "c", "sync", monkeypatch)
    newcomer.fetch(STATE, held=True)
    forced = newcomer.before("adopt")
    assert {name.split("/", 1)[1] for name in forced if "/" in name} >= {"checkpoint", "checkpoint/state/1.delta"}
    assert all(name.startswith("dropped-") for name in forced)
    assert newcomer.dirs.incoming(STATE).exists() and newcomer.dirs.present() == [STATE]


def test_in_memory_only_the_log_is_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newcomer = Newcomer(tmp_path / "c", "memory", monkeypatch)
    newcomer.fetch(STATE)
    assert newcomer.done == ["adopt", "counts"]
    newcomer.done.clear()
    newcomer.fetch(LOG)
    assert f"incoming/{LOG}/log/base.json" in newcomer.before("adopt")


def test_a_disk_that_does_not_take_a_copy_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newcomer = Newcomer(tmp_path / "c", "sync", monkeypatch)
    newcomer.failing = f"incoming/{STATE}/checkpoint/state/1.delta"
    newcomer.fetch(STATE)
    [event] = newcomer.events
    assert isinstance(event, FetchFailed) and "does not answer" in event.reason
    assert newcomer.dirs.present() == []


def test_nothing_is_left_of_a_copy_that_is_not_wanted_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newcomer = Newcomer(tmp_path / "c", "sync", monkeypatch)
    newcomer.fetch(STATE, held=True, stop=True)
    assert newcomer.events == [] and newcomer.dirs.present() == []
    assert not list(newcomer.dirs.root.glob("dropped-*"))


def test_what_a_killed_process_wrote_is_on_disk_before_the_protocol_counts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newcomer = Newcomer(tmp_path / "c", "sync", monkeypatch)
    newcomer.dirs.begin([LOG])
    killed = IngressLogFile(newcomer.dirs.ingress_log(LOG))
    killed.append(*(Entry(index, 1, b"rows", index) for index in range(1, 4)))
    newcomer.done.clear()
    assert [entry.index for entry in newcomer.dirs.state(LOG).log.entries] == [1, 2, 3]
    home = f"replicas/{LOG}"
    assert {f"{home}/log/00000001-0000000000000001.log", f"{home}/log", home, "replicas"} <= set(newcomer.done)
