"""The bodies of the entries of the ingress log that the ingress itself writes: pulses and wishes.

Pushed rows are the third kind of entry (`unbroken.connectors.push.source`); they begin with the length of a header,
which is never so large that it could be taken for the name of a codec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.protocol.ingress.skip import SkipRequest


@dataclass(frozen=True)
class PulseRecord:
    """Where a pulse that was cut at ``cut_ms`` starts and ends in each source, by the position of its connector.

    ``generation`` is that of the code whose results count for it, ``layout`` the one by which they are delivered.
    Sources that are ``unreachable`` could not be asked, and stay where they are.
    ``more`` is what a policy says besides.
    """

    cut_ms: int
    spans: Mapping[str, tuple[Any, Any]]
    generation: int
    layout: int
    unreachable: tuple[str, ...] = ()
    more: bytes = b""


PULSE = Codec(PulseRecord, "pulse")
WISH = Codec(SkipRequest, "wish")


def wish_of(body: bytes) -> SkipRequest | None:
    """None if the entry is something else, or no wish that this code understands: then it changes nothing."""
    try:
        found = WISH.decode(body)
    except Undecodable:
        return None
    return found if found.pulse > 0 else None
