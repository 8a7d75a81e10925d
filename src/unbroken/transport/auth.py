"""Every call carries the flow's token; a call without it is refused before anything is read."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path
from typing import Any

import pyarrow.flight as flight

from unbroken.errors import UnbrokenError


def create_token(path: Path) -> str:
    """Make the flow's token, readable by its owner only; an existing one is kept."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
    return read_token(path)


def read_token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise UnbrokenError(
            f"the flow's token cannot be read from {path}: {error.strerror}. "
            "Copy it from the machine that runs the flow, or name it with --token-file."
        ) from error


def call_options(token: str, timeout_s: float | None = None) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(timeout=timeout_s, headers=[(b"authorization", f"Bearer {token}".encode())])


class TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls whose token is missing or wrong."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: dict[str, list[str | bytes]]) -> None:
        given = next((values[0] for name, values in headers.items() if name.lower() == "authorization"), "")
        offered = given.encode() if isinstance(given, str) else given
        if not hmac.compare_digest(offered, self._expected):
            raise flight.FlightUnauthenticatedError("the flow's token is missing or wrong")
