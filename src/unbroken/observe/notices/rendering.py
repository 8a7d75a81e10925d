"""The table of all kinds of notices, and notices as English.

It is above the protocol, which reports data alone, and below the node, whose log has the sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unbroken.observe.notices import ingress, placement, processes, replicas, sinks
from unbroken.observe.notices.words import Topic, Words
from unbroken.protocol.values.notices import Notice, Reported, UnknownNotice, known_kinds

TOPICS: tuple[Topic, ...] = (
    placement.BEGINNING,
    placement.LOSSES,
    replicas.LOSSES,
    replicas.UNITS,
    processes.NODES,
    processes.SPARK,
    placement.DOCUMENTS,
    placement.REPAIR,
    replicas.STATE,
    placement.TAKEOVERS,
    replicas.STANDBYS,
    ingress.SOURCES,
    ingress.INGRESS,
    ingress.CLOCKS,
    placement.PAUSES,
    sinks.SINKS,
    replicas.INPUT,
    processes.UPGRADES,
    placement.COPIES,
    processes.LOCAL,
    processes.PAGE,
)
"""In the order of the handbook."""


def table_of(topics: Sequence[Topic]) -> dict[type[Notice], Words[Any]]:
    """The words for every kind.

    Raises
    ------
    TypeError
        If a kind has no words, an empty explanation, or two rows: this module cannot be imported then.
    """
    rows = [row for topic in topics for row in topic.rows]
    table = {row.of: row for row in rows}
    missing = set(known_kinds().values()) - set(table) - {UnknownNotice}
    unclear = [row.of for row in rows if not row.meaning or not row.examples]
    if missing or unclear or len(table) < len(rows):
        wrong = sorted(
            {kind.kind for kind in [*missing, *unclear]} | {row.of.kind for row in rows if rows.count(row) > 1}
        )
        raise TypeError(f"kinds of notices without one explanation: {', '.join(wrong)}")
    return table


TABLE = table_of(TOPICS)


def text_of(notice: Notice) -> str:
    """A notice as a sentence."""
    if isinstance(notice, UnknownNotice):
        return f"{notice.name} (of another version): {notice.data}"
    text: str = TABLE[type(notice)].text(notice)
    return text


def line_of(reported: Reported) -> str:
    """The same with the node that reports it."""
    return f"{reported.node}: {text_of(reported.notice)}"
