"""One look at the flow for everybody who watches: a thread asks, and each viewer gets the newest answer.

However many pages are open, the nodes are asked once, about once a second, and rarely while nobody watches: a few
samples are kept then, so that the charts do not begin with the first viewer. A viewer that is slow misses documents,
never samples: it is given the newest document and all samples since the one it has.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import Raw

from unbroken.errors import UnbrokenError
from unbroken.observe.status.notices import reported_notice
from unbroken.page.chronicle import Chronicle, marks_of
from unbroken.page.document import HistoryEntry, PageFacts, PageUpdate
from unbroken.page.redundancy import RedundancyWatch
from unbroken.page.replicas import replica_views
from unbroken.page.series import FlowSample, Series, columns
from unbroken.page.snapshot import FlowSnapshot
from unbroken.page.view import document
from unbroken.protocol.values.notices import Reported

log = logging.getLogger(__name__)

PERIOD_S = 1.0
IDLE_PERIOD_S = 5.0
"""Between two looks while nobody watches."""

MOST_VIEWERS = 64
TIMINGS = 600
"""Updates whose cost is remembered."""

NO_FACTS = PageFacts()


@dataclass(frozen=True)
class FlowStory:
    """The history and its marks, encoded; ``number`` counts the changes."""

    number: int
    marks: Raw
    history: Raw


NOTHING_YET = FlowStory(0, Raw(b"[]"), Raw(b"[]"))


@dataclass(frozen=True)
class Update:
    """What there is to show after one look.

    The document is written down once, whoever reads it. Of the samples and the history a viewer gets what it lacks.
    """

    number: int
    view: Raw
    page: Raw
    samples: tuple[FlowSample, ...]
    story: FlowStory

    def since(self, known: Known) -> tuple[str, Known]:
        """The update as JSON, for somebody who knows as much, and what that one knows then."""
        last = self.samples[-1].number if self.samples else 0
        first = self.samples[0].number if self.samples else 1
        whole = known.sample == 0 or known.sample > last or known.sample < first - 1
        wanted = self.samples if whole else [sample for sample in self.samples if sample.number > known.sample]
        lacks = known.story != self.story.number
        update = PageUpdate(
            number=self.number,
            whole=whole,
            samples=columns(wanted),
            view=self.view,
            page=self.page,
            marks=self.story.marks if lacks else None,
            history=self.story.history if lacks else None,
        )
        return msgspec.json.encode(update).decode(), Known(self.number, last, self.story.number)


@dataclass(frozen=True)
class Known:
    """What a viewer has: the numbers of the update, the sample and the history that came last."""

    update: int = 0
    sample: int = 0
    story: int = 0


class Viewer:
    """Somebody who watches. ``wake`` is called from the feed's thread when there is something to take."""

    def __init__(self, feed: PageFeed, wake: Callable[[], None]) -> None:
        self._feed = feed
        self._wake = wake
        self.ended = False

    def take(self, known: Known) -> Update | None:
        """The newest update, unless it is known."""
        update = self._feed.latest
        return update if update is not None and update.number != known.update else None

    def notify(self) -> None:
        self._wake()

    def close(self) -> None:
        self._feed.leave(self)


class PageFeed:
    """Looks at a flow and makes updates of what it sees.

    Parameters
    ----------
    look
        Gives a snapshot; called by one thread, and may take its time. An error is shown on the page, with what was
        seen last.
    facts
        What goes with every update as it is, such as which actions are possible.
    """

    def __init__(
        self,
        look: Callable[[], FlowSnapshot],
        facts: PageFacts = NO_FACTS,
        *,
        period_s: float = PERIOD_S,
        idle_period_s: float = IDLE_PERIOD_S,
    ) -> None:
        self._look = look
        self._facts = _encoded(facts)
        self._period_s = period_s
        self._idle_period_s = idle_period_s
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._viewers: set[Viewer] = set()
        self._closed = False
        self._hurry = False
        self._thread = threading.Thread(target=self._work, name="page-feed", daemon=True)
        self._chronicle = Chronicle()
        self._series = Series()
        self._redundancy = RedundancyWatch()
        self._last: FlowSnapshot | None = None
        self._number = 0
        self._told: list[Reported] = []
        self._story = NOTHING_YET
        self.latest: Update | None = None
        self.timings_ms: deque[float] = deque(maxlen=TIMINGS)
        self.cpu_ms: deque[float] = deque(maxlen=TIMINGS)
        """What making an update has cost, without the look: by the clock, and of the processor."""

    def start(self) -> None:
        self._thread.start()

    def join(self, wake: Callable[[], None]) -> Viewer:
        """Watch; UnbrokenError if too many do already."""
        with self._turn:
            if self._closed or len(self._viewers) >= MOST_VIEWERS:
                raise UnbrokenError(f"{len(self._viewers)} pages are open; close one of them, or try again later")
            viewer = Viewer(self, wake)
            self._viewers.add(viewer)
            self._turn.notify_all()
            return viewer

    def leave(self, viewer: Viewer) -> None:
        with self._turn:
            self._viewers.discard(viewer)

    def hurry(self) -> None:
        """Look again at once: something was done whose effect somebody wants to see."""
        with self._turn:
            self._hurry = True
            self._turn.notify_all()

    def close(self, deadline_s: float = 5.0) -> bool:
        """Stop looking and let the viewers go; False if a look does not come to its end in time."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()
            viewers, self._viewers = self._viewers, set()
        for viewer in viewers:
            viewer.ended = True
            viewer.notify()
        if self._thread.is_alive():
            self._thread.join(deadline_s)
        return not self._thread.is_alive()

    def turn(self) -> Update:
        """Look once and make an update of it. For the feed's own thread, and for tests."""
        snapshot = self._seen()
        began, spent = time.perf_counter(), time.thread_time()
        self._chronicle.look(snapshot)
        self._series.look(snapshot)
        views = replica_views(snapshot)
        reports = self._chronicle.reports
        redundancy = self._redundancy.look(snapshot, views, reports)
        self._write_story(reports)
        view = _encoded(document(snapshot, redundancy, views))
        self._number += 1
        self.latest = Update(self._number, view, self._facts, tuple(self._series.samples), self._story)
        self.timings_ms.append((time.perf_counter() - began) * 1000)
        self.cpu_ms.append((time.thread_time() - spent) * 1000)
        return self.latest

    def _write_story(self, reports: list[Reported]) -> None:
        """Write the history down, if it has changed."""
        if self._story.number and reports is self._told:
            return
        self._told = reports
        entries = [self._entry(one) for one in reports]
        self._story = FlowStory(self._story.number + 1, _encoded(marks_of(reports)), _encoded(entries))

    def _entry(self, reported: Reported) -> HistoryEntry:
        found = reported_notice(reported)
        named = found.node == self._chronicle.page or found.node in found.fields.values()
        return HistoryEntry(**{name: getattr(found, name) for name in found.__struct_fields__}, named=named)

    def _seen(self) -> FlowSnapshot:
        try:
            self._last = self._look()
            return self._last
        except Exception as error:
            # Whatever it is, the page has to say so: it is where somebody looks.
            if not isinstance(error, UnbrokenError):
                log.exception("the flow cannot be looked at")
            what = (str(error).splitlines() or [type(error).__name__])[0]
            last = self._last or FlowSnapshot(0, "")
            return replace(last, time_ms=int(time.time() * 1000), trouble=what)

    def _work(self) -> None:
        looked = time.monotonic()
        while True:
            try:
                self.turn()
            except Exception:
                # The next look may be another; a page that stands still would be worse.
                log.exception("what was seen of the flow cannot be shown")
            with self._turn:
                viewers = list(self._viewers)
            for viewer in viewers:
                viewer.notify()
            if not self._wait(looked):
                return
            looked = time.monotonic()

    def _wait(self, looked: float) -> bool:
        """Wait until it is time to look again; False if there is no more to look at."""
        with self._turn:
            while not self._closed and not self._hurry:
                period_s = self._period_s if self._viewers else self._idle_period_s
                left = looked + period_s - time.monotonic()
                if left <= 0:
                    break
                self._turn.wait(left)
            self._hurry = False
            return not self._closed


def _encoded(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))
