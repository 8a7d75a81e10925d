"""Keys derived from the token."""

from __future__ import annotations

import hashlib
import hmac
from typing import get_args

import pytest

from kit.support import TOKEN
from unbroken.errors import UnbrokenError
from unbroken.security.certificates import credentials
from unbroken.security.keys import SALT, SHORTEST_TOKEN, KeyPurpose, check_token, derive
from unbroken.security.sealing import Seal
from unbroken.transport.auth import server_options


def test_every_purpose_has_a_key_of_its_own() -> None:
    keys = {derive(token, purpose) for token in (TOKEN, f"{TOKEN}.") for purpose in get_args(KeyPurpose)}
    assert len(keys) == 2 * len(get_args(KeyPurpose)) and {len(key) for key in keys} == {32}
    assert derive(TOKEN, "push", 48)[:32] == derive(TOKEN, "push") and len(derive(TOKEN, "push", 48)) == 48


def test_the_derivation_is_that_of_the_standard() -> None:
    """HKDF of RFC 5869, by the library that is used for certificates."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    assert derive(TOKEN, "documents", 80) == HKDF(SHA256(), 80, SALT, b"documents").derive(TOKEN.encode())
    assert derive(TOKEN, "documents") != hmac.new(TOKEN.encode(), b"documents", hashlib.sha256).digest()


@pytest.mark.parametrize("token", ["", "a", "x" * (SHORTEST_TOKEN - 1)])
def test_a_token_that_can_be_guessed_is_refused_everywhere(token: str) -> None:
    for use in (check_token, Seal, credentials, server_options):
        with pytest.raises(UnbrokenError, match=f"too short: {len(token)} characters. Make one of at least 32"):
            use(token)
    assert check_token("x" * SHORTEST_TOKEN)
