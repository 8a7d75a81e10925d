"""The story of a run: what happened to the units, replicas and nodes that a failure is about."""

from __future__ import annotations

import re
from collections import deque

from unbroken.protocol.events import Event, GateAsked, Tick
from unbroken.protocol.ids import NodeId

LIMIT = 200_000
"""Events that are remembered; a run that fails tells of the last ones."""

NAMES = re.compile(r"[A-Za-z0-9_@~]+\.\d+(?:>[A-Za-z0-9_@~]+\.\d+|#\d+)?")
"""Streams, replicas and shards, as they appear in sentences."""

NUMBER = re.compile(r"unit (\d+)")


class Story:
    """Remembers every event of a run, to be asked about a failure afterwards.

    It is only kept when a run is repeated for it: the same seed gives the same run, so nothing has to be written down
    as long as all is well.
    """

    def __init__(self) -> None:
        self._events: deque[tuple[float, NodeId, Event]] = deque(maxlen=LIMIT)
        self._sentences: list[tuple[float, str]] = []

    def event(self, now_ms: float, name: NodeId, event: Event) -> None:
        if not isinstance(event, Tick | GateAsked):
            self._events.append((now_ms, name, event))

    def sentence(self, now_ms: float, text: str) -> None:
        self._sentences.append((now_ms, text))

    def about(self, failure: str, most: int = 120) -> list[str]:
        """The last events that concern what a failure names, with everything that was done and decided meanwhile."""
        names = [found.group() for found in NAMES.finditer(failure)]
        number = NUMBER.search(failure)
        wanted = [f"{name}" for name in names]
        lines = [(ms, f"{name} {_words(event)}") for ms, name, event in self._events]
        units = None if number is None else f"unit {number.group(1)} "
        found = [
            (ms, text)
            for ms, text in lines
            if any(name in text for name in wanted) and (units is None or units in text or " unit " not in text)
        ]
        since = found[-most][0] if len(found) > most else 0.0
        told = [(ms, f"* {text}") for ms, text in self._sentences if ms >= since]
        return [f"{ms:12.3f} {text}" for ms, text in sorted([*found[-most:], *told], key=lambda line: line[0])]


def _words(event: Event) -> str:
    """An event in words that name units the way failures do."""
    header = getattr(event, "header", None)
    if header is not None:
        return f"{type(event).__name__} unit {header.number} of {header.stream} from {getattr(event, 'sender', '')}"
    text = repr(event)
    for kind in ("ShardId", "ReplicaId", "StreamId"):
        text = re.sub(kind + r"\(([^()]*)\)", r"\1", text)
    text = re.sub(r"part='([^']*)', index=(\d+)", r"\1.\2", text)
    text = re.sub(r"shard=([^ ,]*\.\d+), index=(\d+)", r"\1#\2", text)
    text = re.sub(r"producer=([^ ,]*), consumer=([^ ,)]*)", r"\1>\2", text)
    return text
