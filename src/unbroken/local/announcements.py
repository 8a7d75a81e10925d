"""How a run tells what happens: lines for a person, or events as JSON for a program."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from unbroken.observe.notices import line_of
from unbroken.observe.status.notices import reported_notice

if TYPE_CHECKING:
    from unbroken.client.tentative_view import Result
    from unbroken.connectors.files.sinks import Console as ConsoleSink
    from unbroken.protocol.values.notices import Reported


class Teller(ABC):
    """Is told what happens, as it does."""

    @abstractmethod
    def say(self, event: str, text: str, **facts: Any) -> None:
        """Something about the run itself: a sentence, and for programs a word and facts."""

    @abstractmethod
    def news(self, reported: Reported) -> None:
        """A node reports something."""

    @abstractmethod
    def rows(self, sink: ConsoleSink, result: Result) -> None:
        """Rows have come to a console sink."""


class TextTeller(Teller):
    """Writes for a person."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, event: str, text: str, **facts: Any) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def news(self, reported: Reported) -> None:
        self._console.print(line(reported), highlight=False, markup=False)

    def rows(self, sink: ConsoleSink, result: Result) -> None:
        shown = sink.render(result.header, result.table, result.correction)
        self._console.print(shown, highlight=False, markup=False)


class JsonTeller(Teller):
    """Writes one JSON object per line; ``event`` says what it is about."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def say(self, event: str, text: str, **facts: Any) -> None:
        self._event(event, int(time.time() * 1000), text=text, **facts)

    def news(self, reported: Reported) -> None:
        self._event("report", **msgspec.to_builtins(reported_notice(reported)))

    def rows(self, sink: ConsoleSink, result: Result) -> None:
        """Tentative rows cover the pulses after ``since`` up to ``pulse``; stable ones of these replace them."""
        header = result.header
        covers = {"correction": result.correction} if header.stable else {"since": header.since}
        self._event(
            "rows",
            int(time.time() * 1000),
            stream=str(header.stream),
            unit=header.number,
            stable=header.stable,
            pulse=header.pulse,
            **covers,
            rows=result.table.to_pylist(),
        )

    def _event(self, event: str, time_ms: int, **facts: Any) -> None:
        self._write(json.dumps({"event": event, "time_ms": time_ms, **facts}, default=str))


def teller_of(out: Console | Teller) -> Teller:
    """What writes to ``out``."""
    return out if isinstance(out, Teller) else TextTeller(out)


def line(reported: Reported) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(reported.time_ms / 1000))} {line_of(reported)}"
