"""Which lines can be rows of a schema at all, seen by one pattern for the whole line.

Arrow matches the pattern of a schema against all lines at once, in a fraction of the time that it takes to read them.
So lines that are wrong cost less than lines that are right, and the lines that remain are read at once. A line that
`sift` calls wrong is wrong by the rules of its format; the patterns match every line that is right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from unbroken.data.rows.text.plausibility import as_bools

Bools = npt.NDArray[np.bool_]

_MULTIBYTE = (
    r"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    r"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}"
    r"|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)


def character(ascii_class: str) -> str:
    """Matches one character of a text in UTF-8, which is one of the class if it is ASCII."""
    return rf"(?:{ascii_class}|{_MULTIBYTE})"


@dataclass(frozen=True)
class Sifted:
    """Lines by how they are read: ``likely`` ones at once, ``odd`` ones singly, and all others are wrong."""

    likely: Bools
    odd: Bools


class LinePattern(ABC):
    """The pattern of one schema in one format."""

    text: str

    max_chars: int
    """Longer patterns, of wide schemas, are not used: those that are a little longer take more memory than Arrow's
    matcher may have, which makes it ten times slower."""

    chars_per_line: int
    """Arrow compiles a pattern for each piece. For so many characters, this takes as long as to read one line more
    closely."""

    def pays(self, lines: int) -> bool:
        """Whether sorting so many lines takes less time than reading them closely."""
        return len(self.text) <= self.chars_per_line * lines

    @abstractmethod
    def sift(self, texts: pa.Array) -> Sifted:
        """Sort lines; each may have white space and its line break at the end."""


def matching(texts: pa.Array, pattern: str) -> Bools:
    """Which texts, as bytes, have a part that the pattern matches."""
    return as_bools(pc.match_substring_regex(texts, pattern))


def matching_among(texts: pa.Array, among: Bools, pattern: str) -> Bools:
    """As `matching`, where ``among`` is true; false elsewhere."""
    found = np.zeros(len(texts), np.bool_)
    if among.any():
        found[among] = matching(texts.filter(pa.array(among)), pattern)
    return found
