"""Runs one command and sees to it that nothing of it stays behind. Started by ``processes.spawn``.

The arrangement, from owner to command::

    owner --lifeline pipe--> guardian --> command (leader of its own session) --> descendants
                             sentinel (watches the guardian)

- The owner holds the only writing end of the lifeline. The system closes it when the owner ends, however that
  happens, and the guardian then kills everything. No thread or signal of the owner is involved.
- The command leads a session of its own. Process groups would not do: ``pyspark.daemon`` moves to a group of
  its own, but it stays in the session, also after its parent has died. On Linux the guardian also adopts
  orphaned descendants, and so finds even those that started a session of their own.
- The sentinel is a fork of the guardian that does the same if the guardian itself is killed. On Linux the
  command is also told to die with the guardian, in case both are killed at once.

The guardian answers on a status pipe in lines: ``started PID``, or ``failed REASON``, then ``exited CODE`` as
soon as the command has ended (negative for a signal). It ends when the last descendant has.

This file is run as a script and imports only the standard library and psutil, so a guardian costs a few
megabytes and does not import Spark.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from types import FrameType

import psutil

SWEEP_DEADLINE_S = 10.0
"""How long killed processes may take to disappear; longer means they hang in the kernel."""

SWEEP_PAUSE_S = 0.01
"""Pause between two looks at the process table while killed processes disappear."""

SIGNAL_GRACE_S = 5.0
"""Time between SIGTERM and SIGKILL when the guardian is stopped by a signal instead of by its owner."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def session_members(session: int) -> list[int]:
    """The ids of all processes of a session that are not zombies, on Linux and macOS."""
    members = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if pid > 0 and os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                members.append(pid)
    return members


def sweep(find: Callable[[], Iterable[int]], deadline_s: float = SWEEP_DEADLINE_S) -> list[int]:
    """Kill what ``find`` finds until it finds nothing, because a process may fork while it is looked for.

    Returns the ids that are still there at the deadline, normally none.
    """
    end = time.monotonic() + deadline_s
    while True:
        remaining = list(find())
        if not remaining or time.monotonic() >= end:
            return remaining
        for pid in remaining:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(SWEEP_PAUSE_S)


def _prctl(option: int, value: int) -> None:
    """Linux's prctl; elsewhere nothing, where session and sentinel have to do."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Guardian:
    """One command and the duty to leave nothing of it behind."""

    def __init__(self, lifeline: int, status: int) -> None:
        self._lifeline = lifeline
        self._status = status
        self._sentinel_pid = 0
        self._sentinel_pipe = -1
        self._command: subprocess.Popen[bytes] | None = None
        self._kill_at: float | None = None
        self._lifeline_text = b""

    def run(self, arguments: list[str]) -> int:
        os.set_blocking(self._lifeline, False)
        wakeup = self._watch_signals()
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        guardian_pid = os.getpid()

        def before_exec() -> None:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guardian_pid:
                os._exit(1)

        try:
            # start_new_session makes the command the leader of the session that is swept at the end.
            self._command = subprocess.Popen(arguments, start_new_session=True, preexec_fn=before_exec)
        except (OSError, subprocess.SubprocessError) as error:
            self._report(f"failed {error}")
            return 127
        self._start_sentinel(self._command.pid)
        self._report(f"started {self._command.pid}")
        self._watch(wakeup)
        code = self._command.poll()
        if code is not None:
            self._report(f"exited {code}")
        left = sweep(self._find_all)
        if code is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._command.wait(SWEEP_DEADLINE_S)
            self._report(f"exited {self._command.poll() or -signal.SIGKILL}")
        self._reap_adopted()
        self._dismiss_sentinel()
        return 0 if not left else 1

    def _watch(self, wakeup: int) -> None:
        """Return when the command has ended, or when it is time to kill it."""
        assert self._command is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._lifeline, selectors.EVENT_READ)
            selector.register(wakeup, selectors.EVENT_READ)
            while self._command.poll() is None:
                left = None if self._kill_at is None else self._kill_at - time.monotonic()
                if left is not None and left <= 0:
                    return
                # SIGCHLD wakes this up; the bound is there in case a signal gets lost.
                for key, _ in selector.select(1.0 if left is None else min(left, 1.0)):
                    if key.fd == wakeup:
                        self._take_signals(os.read(wakeup, 4096))
                    elif not self._take_orders():
                        return

    def _take_signals(self, numbers: bytes) -> None:
        if signal.SIGCHLD in numbers:
            self._reap_adopted()
        if any(number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) for number in numbers):
            self._terminate(SIGNAL_GRACE_S)

    def _take_orders(self) -> bool:
        """Read the lifeline: ``stop SECONDS``, or its end, which means that the owner is gone."""
        try:
            text = os.read(self._lifeline, 4096)
        except BlockingIOError:
            return True
        if not text:
            return False
        self._lifeline_text += text
        *lines, self._lifeline_text = self._lifeline_text.split(b"\n")
        for line in lines:
            order, _, argument = line.partition(b" ")
            if order == b"stop":
                self._terminate(float(argument))
        return True

    def _terminate(self, grace_s: float) -> None:
        """Ask the command, and only it, to end; a frozen one is woken up to hear it."""
        assert self._command is not None
        end = time.monotonic() + grace_s
        self._kill_at = end if self._kill_at is None else min(end, self._kill_at)
        self._command.send_signal(signal.SIGTERM)
        self._command.send_signal(signal.SIGCONT)

    def _find_all(self) -> set[int]:
        """Everything that came from the command, and is not yet known to be dead."""
        assert self._command is not None
        self._command.poll()
        found = set(session_members(self._command.pid))
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.pid == self._sentinel_pid:
                    continue
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.add(process.pid)
        return found

    def _reap_adopted(self) -> None:
        """Collect the orphans that the system has made children of the guardian, or they stay as zombies."""
        assert self._command is not None
        for process in psutil.Process().children():
            if process.pid not in (self._sentinel_pid, self._command.pid):
                with contextlib.suppress(OSError):
                    os.waitpid(process.pid, os.WNOHANG)

    def _report(self, line: str) -> None:
        # The owner may be gone; its absence is learnt from the lifeline, not from here.
        with contextlib.suppress(OSError):
            os.write(self._status, line.replace("\n", " ").encode() + b"\n")

    def _watch_signals(self) -> int:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)

        def ignore(number: int, frame: FrameType | None) -> None:
            """A handler has to exist for the wake-up pipe to be written to."""

        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, ignore)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        return reading

    def _start_sentinel(self, session: int) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                # Whoever waits for the guardian's end of a pipe must not be kept waiting by the sentinel.
                for descriptor in (writing, self._status, self._lifeline):
                    os.close(descriptor)
                if not os.read(reading, 1):
                    sweep(lambda: session_members(session))
            finally:
                os._exit(0)
        os.close(reading)
        self._sentinel_pid, self._sentinel_pipe = pid, writing

    def _dismiss_sentinel(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._sentinel_pipe, b".")
            os.waitpid(self._sentinel_pid, 0)


def main(arguments: list[str]) -> int:
    lifeline, status, separator, *command = arguments
    if separator != "--" or not command:
        print("usage: guardian LIFELINE_FD STATUS_FD -- COMMAND [ARGUMENT ...]", file=sys.stderr)
        return 2
    # Only the guardian may hold these two: in the command they would survive the guardian.
    os.set_inheritable(int(lifeline), False)
    os.set_inheritable(int(status), False)
    return Guardian(int(lifeline), int(status)).run(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
