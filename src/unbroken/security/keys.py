"""Keys derived from the flow's token, one for each purpose."""

from __future__ import annotations

import hashlib
import hmac
from typing import Literal

from unbroken.errors import UnbrokenError

SHORTEST_TOKEN = 32
"""Characters of a token. Derived values can be tried against guesses at leisure: a token must not be guessable."""

SALT = b"unbroken token, version 1"

KeyPurpose = Literal["documents", "zookeeper", "certificate authority", "push", "orders"]


class WeakToken(UnbrokenError):
    """The token is too short to derive keys from."""


def check_token(token: str) -> str:
    """The token itself; raises WeakToken if it is too short."""
    if len(token) < SHORTEST_TOKEN:
        raise WeakToken(
            f"the flow's token is too short: {len(token)} characters. Make one of at least {SHORTEST_TOKEN} at random, "
            "for example with `openssl rand -hex 32`."
        )
    return token


def derive(token: str, purpose: KeyPurpose, length: int = 32) -> bytes:
    """The key for one purpose, by HKDF (RFC 5869) with SHA-256: no key allows to compute another one."""
    secret = hmac.new(SALT, check_token(token).encode(), hashlib.sha256).digest()
    out, block = b"", b""
    for number in range(1, -(-length // hashlib.sha256().digest_size) + 1):
        block = hmac.new(secret, block + purpose.encode() + bytes([number]), hashlib.sha256).digest()
        out += block
    return out[:length]
