"""The journal that a node keeps of its events, in memory and bounded, and the files that it is written to."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unbroken.codecs.checkpoint import Frame, NoCheckpoint
from unbroken.codecs.codec import Undecodable
from unbroken.codecs.journal import JOURNAL, JournalFile, JournalForm, JournalSegment, PackedSteps
from unbroken.data.checksum import Damaged, replace_file, sealed, unsealed
from unbroken.observe.notices import text_of
from unbroken.protocol.events import Event, Tick
from unbroken.protocol.instructions import Instruction, Report, StopReplica
from unbroken.protocol.journal import Beginning, JournalStep
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.values.notices.replicas import CopyDiffers, ReplicaDiverged
from unbroken.security.secret import holds_secret, masked

log = logging.getLogger(__name__)

SEGMENT_BYTES = 12 << 20
"""The size of a segment, compressed, at which the next one begins: an event takes some 20 bytes, so after hours."""

SEGMENTS = 2
"""Segments that are kept; the oldest is dropped as a whole."""

PATIENCE = 1.25
"""A checkpoint holds the loop up, so it waits for a moment without events until a segment is this much too large."""

FILES = 5
"""Files of a node that are kept; older ones are removed."""

DIVERGENCE_PAUSE_S = 60.0
"""Results that differ may differ with every unit: the file of the first difference is not to be pushed out by the next
ones, and a journal has some megabytes."""

JOURNALS = "journals"
"""The directory of a node for them."""

SUFFIX = ".journal"
REMEDY = "Get another one with `unbroken journal NODE`."


@dataclass
class _Segment:
    first: int
    checkpoint: bytes = b""
    steps: PackedSteps = field(default_factory=PackedSteps)


class Journal:
    """The events of one life of a node, as its loop handles them.

    ``handled`` and ``failed`` are called by the loop, ``bytes`` by any thread. ``protocol`` is the object that was made
    from the beginning and has handled nothing.

    Invariant: the steps of all segments follow each other, and a segment has a checkpoint of the state before its first
    step, unless that is the beginning or the state was too large to be written.
    """

    def __init__(self, beginning: Beginning, protocol: NodeProtocol, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._form = JournalForm()
        self._node = beginning.node
        self._beginning = self._form.beginning_bytes(beginning)
        self._frame = Frame(protocol)
        self._segment_bytes = segment_bytes
        self._segments: deque[_Segment] = deque([_Segment(1)], SEGMENTS)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._differed_s: float | None = None
        """When a difference was last a reason to write."""

    def handled(self, at_ms: float, event: Event, steps: Sequence[Instruction]) -> None:
        self._add(JournalStep(at_ms, event, self._form.mark(steps)))

    def failed(self, at_ms: float, event: Event, error: BaseException) -> None:
        self._add(JournalStep(at_ms, event, "", masked(f"{type(error).__name__}: {error}")))

    def _add(self, step: JournalStep) -> None:
        data = self._form.step_bytes(step)
        if holds_secret(data.decode("utf-8", "replace")):
            data = self._form.step_bytes(replace(step, event=_without_secrets(step.event), mark=""))
        with self._lock:
            latest = self._segments[-1]
            latest.steps.add(data)
            size = latest.steps.bytes
        # A step that has failed leaves a state that nothing follows from.
        if not step.failure and size >= self._segment_bytes * (1 if isinstance(step.event, Tick) else PATIENCE):
            following = _Segment(latest.first + latest.steps.count, self._checkpoint())
            with self._lock:
                self._segments.append(following)

    def _checkpoint(self) -> bytes:
        """The state of the protocol object at this moment; empty if it cannot be written."""
        try:
            data = self._form.checkpoint_bytes(self._frame)
            if holds_secret(zlib.decompress(data).decode("utf-8", "replace")):
                data = self._form.checkpoint_bytes(self._frame, masked)
        except NoCheckpoint as error:
            log.warning("the journal has no checkpoint: %s", error)
            return b""
        return data

    def bytes(self, reason: str) -> bytes:
        """The journal as a file, which `read_journal` reads."""
        with self._lock:
            now_ms = int(time.time() * 1000)
            segments = tuple(JournalSegment(each.first, each.checkpoint, each.steps.all()) for each in self._segments)
        return sealed(JOURNAL.encode(JournalFile(self._node, masked(reason), now_ms, self._beginning, segments)))

    def write(self, directory: Path, reason: str) -> Path | None:
        """Write the journal to a file in ``directory``; None if the disk does not take it: that must change nothing."""
        with self._writing:  # two reasons within a second have the same file
            return self._write(directory, reason)

    def _write(self, directory: Path, reason: str) -> Path | None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = directory / f"{self._node}-{time.strftime('%Y%m%dT%H%M%S')}{SUFFIX}"
            replace_file(path, self.bytes(reason))
            for old in sorted(directory.glob(f"*{SUFFIX}"))[:-FILES]:
                old.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the journal is not written: %s", error)
            return None
        log.warning("the journal is in %s (%s)", path, masked(reason))
        return path

    def look(self, directory: Path, steps: Sequence[Instruction]) -> None:
        """Write it if these steps stop a replica or report that results differ, also if the replica that is wrong
        stops on another node: the events that led to it are still here."""
        stopped = next((step.reason for step in steps if isinstance(step, StopReplica)), None)
        if stopped is not None:
            self.write_apart(directory, stopped)
            return
        notices = (step.notice for step in steps if isinstance(step, Report))
        found = next((each for each in notices if isinstance(each, CopyDiffers | ReplicaDiverged)), None)
        now_s = time.monotonic()
        if found is not None and (self._differed_s is None or now_s - self._differed_s >= DIVERGENCE_PAUSE_S):
            self._differed_s = now_s
            self.write_apart(directory, text_of(found))

    def write_apart(self, directory: Path, reason: str) -> None:
        """Write it in a thread of its own: the loop, which has more to do, waits for no disk."""
        threading.Thread(target=self.write, args=(directory, reason), name="journal", daemon=True).start()


def read_journal(path: Path) -> JournalFile:
    """Raises Damaged if the file is no journal, is damaged, or of another version."""
    try:
        return JOURNAL.decode(unsealed(path, path.read_bytes(), REMEDY))
    except Undecodable as error:
        raise Damaged(path, str(error), REMEDY) from None


def _without_secrets(event: Any) -> Any:
    """The same event with its texts masked."""
    texts = {name: masked(value) for name, value in vars(event).items() if isinstance(value, str)}
    return replace(event, **texts)
