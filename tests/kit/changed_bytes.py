"""Bytes that have been changed on their way."""

from __future__ import annotations

from hypothesis import strategies as st


def changed(data: st.DataObject, written: bytes) -> bytes:
    """The bytes with one to four changes: some are set, cut out or put in."""
    out = bytearray(written)
    for _ in range(data.draw(st.integers(1, 4))):
        if not out:
            break
        at = data.draw(st.integers(0, len(out) - 1))
        match data.draw(st.sampled_from(("set", "cut", "put"))):
            case "set":
                out[at] = data.draw(st.integers(0, 255))
            case "cut":
                del out[at : at + data.draw(st.integers(1, 8))]
            case "put":
                out[at:at] = data.draw(st.binary(min_size=1, max_size=8))
    return bytes(out)
