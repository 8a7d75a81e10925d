"""The work of the ingress: jobs in the order of the log, each of them repeated until it is done."""

from __future__ import annotations

import errno
import logging
import threading
from collections import deque
from collections.abc import Callable

from unbroken.connectors.failures import is_passing
from unbroken.errors import reason_of
from unbroken.node.ingress.surroundings import IngressNode
from unbroken.node.workers import Job, Worker
from unbroken.protocol.ingress.quarantine import Attempts
from unbroken.protocol.values.notices.ingress import IngressFailing, IngressJobSetAside, IngressOverwhelmed

log = logging.getLogger(__name__)

JOB_LIMIT = 10_000
"""Entries waiting to be read from the sources; the bound on pulses in flight keeps it at a handful."""

RETRY_S = 0.5

JOB_ATTEMPTS = 5
"""How often a job may fail in the same way for a reason that lies in the data; trying for longer stops the flow."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What a disk says that will take nothing more: trying again does not help."""


class JobLine:
    """Does jobs one after the other on a worker; handing one over never waits.

    A job that fails for a reason that lies in the data is set aside after some attempts: all nodes have the same log
    and the same code, so all of them set aside the same. One that fails for another reason is repeated, and those after
    it wait. When there is nothing to do, ``look`` is done from time to time, as long as ``look_s`` says when.
    """

    def __init__(
        self,
        node: IngressNode,
        worker: Worker,
        clock_s: Callable[[], float],
        look: Job,
        look_s: Callable[[], float | None],
    ) -> None:
        self._node = node
        self._worker = worker
        self._clock_s = clock_s
        self._look = look
        self._look_s = look_s
        self._jobs: deque[Job] = deque()
        self._closed = threading.Event()
        self._asked = False
        self._resting = False
        self._looking = False
        self._attempts = Attempts(JOB_ATTEMPTS, is_passing)
        self._failing = ""
        self._began_s: float | None = None
        self.set_aside = 0
        """Jobs that could not be carried out, for a reason that lies in the data."""

    def put(self, job: Job) -> None:
        """Do a job after those before it. One that is dropped would be missed: the log on disk has its entry, and a new
        process continues from there."""
        if len(self._jobs) < JOB_LIMIT:
            self._jobs.append(job)
            self._ask()
        elif not self._closed.is_set():
            self._node.fail(IngressOverwhelmed(self._node.name, JOB_LIMIT))

    def stop(self) -> None:
        """Finish the job that is under way, and drop the others."""
        self._closed.set()

    def end(self, last: Job) -> None:
        """Stop, and do one more job then; returns at once."""
        self.stop()
        self._worker.submit(last)

    @property
    def waiting(self) -> int:
        """Jobs that are not done."""
        return len(self._jobs)

    @property
    def busy_s(self) -> float:
        """For how long the worker has been in one attempt at a job; 0 if it is in none. Any thread may call it."""
        began_s = self._began_s
        return 0.0 if began_s is None else max(0.0, self._clock_s() - began_s)

    def _ask(self) -> None:
        """Have the next job done, unless that is asked for already."""
        if not self._asked:
            self._asked = True
            self._worker.submit(self._work)

    def _work(self) -> None:
        self._asked = False  # before it looks: a job that comes later is not left to this call
        if self._jobs and not self._resting and not self._closed.is_set():
            self._attempt(self._jobs[0])

    def _attempt(self, job: Job) -> None:
        if not self._done(job):
            self._resting = True
            self._worker.later(RETRY_S, self._again)
            return
        self._attempts, self._failing = Attempts(JOB_ATTEMPTS, is_passing), ""
        self._jobs.popleft()
        if self._jobs:
            self._ask()
        elif not self._looking and (look_s := self._look_s()) is not None:
            self._looking = True
            self._worker.later(look_s, self._look_again)

    def _again(self) -> None:
        self._resting = False
        self._work()

    def _look_again(self) -> None:
        self._looking = False
        if not self._jobs:
            self._jobs.append(self._look)
            self._ask()

    def _done(self, job: Job) -> bool:
        """Carry out a job; False if it is to be repeated."""
        self._began_s = self._clock_s()
        try:
            job()
        except KeyboardInterrupt:
            raise  # it means the program, not the job
        except BaseException as error:
            return self._failed(error)
        finally:
            self._began_s = None
        return True

    def _failed(self, error: BaseException) -> bool:
        """A job has failed; whether it is over."""
        if isinstance(error, OSError) and error.errno in FULL:
            self._node.cannot_keep(error)
            return True
        reason = reason_of(error)
        if self._attempts.failed(error):
            log.error("a job of the ingress is set aside", exc_info=error)
            self.set_aside += 1
            self._node.tell(IngressJobSetAside(self._node.name, reason))
            return True
        if self._failing != reason:
            self._failing = reason
            log.error("a job of the ingress failed; trying again", exc_info=error)
            self._node.tell(IngressFailing(self._node.name, reason))
        return False
