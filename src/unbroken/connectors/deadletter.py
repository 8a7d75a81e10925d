"""Where bad rows go, so that nothing a source gave is lost without a trace."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from unbroken.connectors.base import BadRow
from unbroken.connectors.publish import publish, remove_leftovers
from unbroken.errors import UnbrokenError


class DeadLetters:
    """A directory with one file of JSON lines per source and pulse that had bad rows.

    Every ingress node may write the file of a pulse, at the same time and again after a restart: the bad rows of
    a pulse are the same everywhere, the first file stays.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._counts: dict[str, int] = {}
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UnbrokenError(f"The directory {directory} for bad rows cannot be made: {error}") from error
        remove_leftovers(self.directory)

    def write(self, source: str, pulse: int, bad: Sequence[BadRow]) -> bool:
        """Keep the bad rows of a pulse; False if they were there already or there are none."""
        if not bad:
            return False

        def fill(file: BinaryIO) -> None:
            for row in bad:
                value = {"source": source, "pulse": pulse, "origin": row.origin}
                file.write(json.dumps({**value, "reason": row.reason, "raw": row.raw}).encode() + b"\n")

        return publish(self.directory, self._name(source, pulse), fill)

    def count(self, source: str) -> int:
        """How many bad rows of ``source`` are kept."""
        prefix = f"{source}-"
        names = {
            name
            for name in os.listdir(self.directory)
            if name.startswith(prefix) and self._is_pulse(name[len(prefix) :])
        }
        return sum(self._lines(name) for name in names)

    def _lines(self, name: str) -> int:
        # Files never change, so each is counted once.
        if name not in self._counts:
            with open(self.directory / name, "rb") as file:
                self._counts[name] = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
        return self._counts[name]

    @staticmethod
    def _name(source: str, pulse: int) -> str:
        return f"{source}-{pulse:010d}.jsonl"

    @staticmethod
    def _is_pulse(rest: str) -> bool:
        """Whether this follows the name of the source itself, not one that only begins like it."""
        return rest.removesuffix(".jsonl").isdigit()
