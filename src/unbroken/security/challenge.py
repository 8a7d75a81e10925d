"""Challenge and response for pushed rows: both sides prove that they have the flow's token, and neither sends it.

A producer sends a number of its own and the address that it means. The server proves first that it has the token, with
a code over both numbers and the address. Only then the producer proves the same, and gets a session: a ticket for this
server that is good for minutes. A server that passes the proofs on to another one gets nowhere, because each accepts
only proofs for its own address. Needs nothing but the standard library.

``POST /session`` with ``{"nonce", "address"}`` answers ``{"nonce", "proof"}``. The same with ``"answer"`` (the server's
nonce) and ``"proof"`` answers ``{"session", "seconds"}``, to be sent as ``Authorization: Session <session>``.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken.security.keys import derive

CHALLENGE_S = 30.0
"""How long a challenge may wait for its answer."""

SESSION_S = 600.0
"""How long a session is good; a producer gets another one then."""

MOST_SESSIONS = 100_000
"""Challenges answered within `CHALLENGE_S`; each takes the token, so that only producers of the flow reach this."""

LONGEST = 200
"""Characters of a value in these messages."""


class NotProven(UnbrokenError):
    """The other side has not proven that it has the flow's token."""


class Malformed(NotProven):
    """A message is not of the form that is asked for."""


def texts(message: object) -> tuple[str, str, str, str]:
    """Nonce, address, answer and proof of a message, each empty if it is not given; raises Malformed.

    JSON has texts without bytes: halves of surrogate pairs.
    """
    if not isinstance(message, Mapping):
        raise Malformed("the message is not a JSON object")
    nonce, address, answer, proof = (message.get(name, "") for name in ("nonce", "address", "answer", "proof"))
    for each in (nonce, address, answer, proof):
        if not isinstance(each, str) or len(each) > LONGEST or not _has_bytes(each):
            raise Malformed(f"each value has to be a text of at most {LONGEST} characters")
    if not nonce:
        raise Malformed("the nonce is missing")
    return nonce, address, answer, proof


def _has_bytes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _code(key: bytes, *parts: str) -> str:
    message = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def _same(code: str, expected: str) -> bool:
    return hmac.compare_digest(code.encode(), expected.encode())


@dataclass(frozen=True)
class Producer:
    """One attempt of a producer to get a session at ``address``."""

    key: bytes
    address: str
    nonce: str

    @classmethod
    def of(cls, token: str, address: str) -> Producer:
        return cls(derive(token, "push"), address, secrets.token_hex(16))

    def question(self) -> dict[str, str]:
        return {"nonce": self.nonce, "address": self.address}

    def answer(self, challenge: Mapping[str, Any]) -> dict[str, str]:
        """The proof of the producer, for a server that has given its own; raises NotProven."""
        try:
            theirs, _, _, proof = texts(challenge)
        except Malformed:
            theirs = proof = ""
        if not _same(proof, _code(self.key, "server", self.nonce, theirs, self.address)):
            raise NotProven(
                f"{self.address} does not prove that it has the flow's token, and is sent nothing. Give the token that "
                "the flow was started with, and the address of one of its nodes."
            )
        return {
            **self.question(),
            "answer": theirs,
            "proof": _code(self.key, "client", self.nonce, theirs, self.address),
        }


class Doorkeeper:
    """The server's side. Keeps nothing about strangers: what it hands out carries a code of its own."""

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = derive(token, "push")
        self._own = secrets.token_bytes(32)
        self._clock = clock
        self._used: dict[str, float] = {}
        self._lock = threading.Lock()

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a message for an address that is this server's own; raises NotProven."""
        nonce, address, answered, proof = texts(message)
        if not answered:
            mine = self._ticket("challenge", CHALLENGE_S, nonce, address)
            return {"nonce": mine, "proof": _code(self._key, "server", nonce, mine, address)}
        fresh = self._valid(answered, "challenge", nonce, address)
        if not fresh or not _same(proof, _code(self._key, "client", nonce, answered, address)):
            raise NotProven("the proof is wrong or too late")
        self._use(answered)
        return {"session": self._ticket("session", SESSION_S), "seconds": SESSION_S}

    def admits(self, session: str) -> bool:
        """Whether a session was opened here and is still good."""
        return len(session) <= LONGEST and _has_bytes(session) and self._valid(session, "session")

    def _use(self, challenge: str) -> None:
        now = self._clock()
        with self._lock:
            self._used = {each: until for each, until in self._used.items() if until > now}
            if challenge in self._used or len(self._used) >= MOST_SESSIONS:
                raise NotProven("the challenge was answered before")
            self._used[challenge] = now + CHALLENGE_S

    def _ticket(self, kind: str, lasts_s: float, *bound: str) -> str:
        until, salt = f"{self._clock() + lasts_s:.3f}", secrets.token_hex(8)
        return f"{until}:{salt}:{_code(self._own, kind, until, salt, *bound)}"

    def _valid(self, ticket: str, kind: str, *bound: str) -> bool:
        until, _, rest = ticket.partition(":")
        salt, _, code = rest.partition(":")
        return _same(code, _code(self._own, kind, until, salt, *bound)) and float(until) > self._clock()
