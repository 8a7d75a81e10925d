"""A connection to PostgreSQL on which every wait has an end, and errors that tell no password."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from unbroken.errors import Flaw, UnbrokenError
from unbroken.security.secret import HIDDEN, Secret, masked

if TYPE_CHECKING:
    import psycopg

CONNECT_S = 10
"""Longest wait for a connection, unless the address has a connect_timeout of its own."""

_SECRETS = ("password", "sslpassword")


@dataclass(frozen=True, repr=False)
class DatabaseAddress:
    """Where a database is, in libpq's words: a URL or ``key=value`` pairs; and the reference to its password."""

    url: str
    password: Secret | None = None

    def problem(self) -> Flaw | None:
        """Why it cannot be used, without showing it: what is wrong may be the password's place."""
        try:
            import psycopg  # noqa: F401
        except ImportError:  # Also if the package is there and libpq is not.
            return Flaw("PostgreSQL needs the package psycopg", "install it with pip install 'unbroken[postgres]'")
        if self._parts() is None:
            return Flaw(
                "The address of PostgreSQL cannot be read",
                "write postgresql://user@host:5432/database, leave the password out of it",
            )
        if any((self._parts() or {}).get(name) for name in _SECRETS):
            return Flaw(
                "The address of PostgreSQL holds a password, which would be stored with the flow's file",
                "leave it out and write password=Secret.env('PGPASSWORD') or Secret.file('/path')",
            )
        return None

    @property
    def timeout_s(self) -> int:
        given = str((self._parts() or {}).get("connect_timeout", "")).strip()
        return int(given) if given.isdigit() and int(given) > 0 else CONNECT_S

    def masked(self, text: str) -> str:
        """``text`` without the passwords of this address."""
        parts = self._parts() or {}
        for secret in (str(parts[name]) for name in _SECRETS if parts.get(name)):
            for form in {secret, quote(secret, safe="")}:
                text = text.replace(form, HIDDEN)
        return masked(text)

    def __repr__(self) -> str:
        """For people: which database it is, and nothing that is secret."""
        parts = self._parts()
        if parts is None:
            return "PostgreSQL"
        shown = ("host", "hostaddr", "port", "user", "dbname", "service")
        return "PostgreSQL at " + (
            " ".join(f"{name}={parts[name]}" for name in shown if parts.get(name)) or "localhost"
        )

    def _parts(self) -> dict[str, Any] | None:
        """The address taken apart; None if it cannot be."""
        try:
            from psycopg import ProgrammingError
            from psycopg.conninfo import conninfo_to_dict
        except ImportError:
            return None
        try:
            parts = dict(conninfo_to_dict(self.url))
        except ProgrammingError:
            return None
        # A password with @ or / in it is taken for part of what follows, and would be shown with it.
        port = str(parts.get("port", ""))
        torn = "@" in str(parts.get("host", "")) or not all(one.isdigit() for one in port.split(",") if one)
        return None if torn else parts


def connect(address: DatabaseAddress, name: str, timeout_s: float) -> psycopg.Connection:
    """Connect, with settings on which neither the rows nor the guarantee depend on how the server is set up.

    A statement ends after ``timeout_s``, and so does a session that is in a transaction and hears nothing. A commit is
    answered when it is on disk: what is answered is not delivered again. Where the client's machine is gone, the server
    finds out within two minutes.

    Raises
    ------
    UnbrokenError
        If the server cannot be reached or refuses, within the time that the address allows.
    """
    import psycopg

    password: dict[str, Any] = {} if address.password is None else {"password": address.password.reveal()}
    try:
        connection = psycopg.connect(
            address.url,
            **password,
            autocommit=True,
            connect_timeout=address.timeout_s,
            client_encoding="utf8",
            fallback_application_name=name,
        )
    except psycopg.Error as error:
        reason = " ".join(address.masked(str(error)).split())
        raise UnbrokenError(f"{address!r} cannot be reached: {reason}") from None
    try:
        with deadline(connection, timeout_s):
            milliseconds = max(1, int(timeout_s * 1000))
            settings = (
                f"SET statement_timeout = {milliseconds}; "
                f"SET idle_in_transaction_session_timeout = {milliseconds}; "
                "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET standard_conforming_strings = on; "
                "SET tcp_keepalives_idle = 60; SET tcp_keepalives_interval = 15; SET tcp_keepalives_count = 4; "
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
            connection.execute(settings.encode())
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def deadline(connection: psycopg.Connection, timeout_s: float) -> Iterator[None]:
    """Hang up if what is done inside takes longer than ``timeout_s``, even if the server is frozen.

    Raises
    ------
    TimeoutError
        Instead of what was raised because of that.
    """
    # From another thread, because libpq waits without an end; after a shutdown of the socket it finds it closed.
    lock = threading.Lock()
    over = False
    late = False

    def hang_up() -> None:
        nonlocal late
        with lock:
            if over or connection.closed:
                return
            late = True
            line = socket.socket(fileno=connection.fileno())
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # It is closed already.
            finally:
                line.detach()

    timer = threading.Timer(timeout_s, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if late:
            raise TimeoutError(f"no answer within {timeout_s:g} s") from error
        raise
    finally:
        timer.cancel()
        with lock:
            over = True
