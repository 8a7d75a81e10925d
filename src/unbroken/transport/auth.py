"""Both ends of every connection show a certificate that takes the flow's token to make (mutual TLS).

A stranger is refused while the connection is set up, before a message is read; the token itself is never sent.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.flight as flight

from unbroken.errors import UnbrokenError
from unbroken.security.certificates import HOST_NAME, Credentials, credentials
from unbroken.security.keys import check_token

# Each stranger that is refused would otherwise write a line into the node's log.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def create_token(path: Path) -> str:
    """Make the flow's token, readable by its owner only; an existing one is kept."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
    return read_token(path)


def read_token(path: Path) -> str:
    """The token in a file; raises UnbrokenError if there is none, or one that could be guessed."""
    try:
        return check_token(path.read_text().strip())
    except OSError as error:
        raise UnbrokenError(
            f"the flow's token cannot be read from {path}: {error.strerror}. "
            "Copy it from the machine that runs the flow, or name it with --token-file."
        ) from error


def open_client(
    address: str, given: Credentials, generic_options: Sequence[tuple[str, int | str]] = ()
) -> flight.FlightClient:
    """A client of a process of the flow; whatever else listens at ``address`` is refused and told nothing."""
    return flight.connect(
        f"grpc+tls://{address}",
        tls_root_certs=given.authority,
        cert_chain=given.certificate,
        private_key=given.key,
        override_hostname=HOST_NAME,
        generic_options=list(generic_options),
    )


def server_options(token: str) -> dict[str, Any]:
    """What a Flight server is made with so that only processes of the flow can connect to it."""
    own = credentials(token)
    return {
        "tls_certificates": [(own.certificate, own.key)],
        "verify_client": True,
        "root_certificates": own.authority,
    }
