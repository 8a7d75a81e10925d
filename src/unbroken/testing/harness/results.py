"""The results of a client sink, as whoever runs a flow to try it out reads them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise

from unbroken.client import Result, Subscription
from unbroken.errors import UnbrokenError

LOOK_S = 0.1


class CollectedResults:
    """Takes results on a thread of its own, as they come, into ``received``.

    A flow that is restarted as a whole is read on behind the last result: `pause` before, `resume` afterwards. That
    needs a sink whose units come from one shard, as the place behind a unit is the same for all shards. ``subscribe``
    gives the results behind a unit.
    """

    def __init__(self, subscribe: Callable[[int], Subscription]) -> None:
        self.received: list[Result] = []
        self._subscribe = subscribe
        self._ended = False
        self._failure: Exception | None = None
        self._subscription: Subscription | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def ended(self) -> bool:
        """Whether everything has come and been taken; raises what kept results from coming."""
        if self._failure is not None:
            raise self._failure
        return self._ended

    def silent_s(self) -> float:
        """How long no result has come; not to be asked before the first one."""
        return time.time() - self.received[-1].arrived_ms / 1000

    def longest_gap_s(self, since_s: float) -> float:
        """The longest time without a result from the last one before a moment (seconds since 1970) until now."""
        arrived = [result.arrived_ms / 1000 for result in list(self.received)]
        before = [moment for moment in arrived if moment < since_s][-1:]
        after = [moment for moment in arrived if moment >= since_s]
        return max(later - earlier for earlier, later in pairwise([*before, *after, time.time()]))

    def resume(self) -> None:
        """Begin to read, or go on behind the last result."""
        if len({result.header.stream for result in self.received}) > 1:
            raise UnbrokenError("results of several shards cannot be read on behind one unit")
        after = self.received[-1].header.number if self.received else 0
        self._subscription = subscription = self._subscribe(after)
        self._stopped.clear()
        self._thread = threading.Thread(target=self._take, args=(subscription,), name="results", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Take what has come and let go of the flow; doing so again does nothing."""
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()

    def _take(self, subscription: Subscription) -> None:
        try:
            while True:
                # Asked before the result is taken: once it holds, everything that will come is in the queue.
                ended, stopped = subscription.ended, self._stopped.is_set()
                result = subscription.next(0 if ended or stopped else LOOK_S)
                if result is not None:
                    self.received.append(result)
                elif ended or stopped:
                    self._ended = ended
                    return
        except Exception as error:
            self._failure = error
