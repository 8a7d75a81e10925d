"""The reference of notices: each kind with severity, examples, meaning and remedy, from the table that words it."""

from __future__ import annotations

from unbroken.observe.notices import TOPICS, text_of
from unbroken.observe.notices.words import Topic

COLUMNS = ("kind", "severity", "example", "meaning", "what to do")


def notices() -> str:
    """A table for each topic."""
    return "\n".join(_section(topic) for topic in TOPICS)


def _section(topic: Topic) -> str:
    lines = [f"### {topic.title}", ""]
    if topic.introduction:
        lines += [topic.introduction, ""]
    lines += [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for row in topic.rows:
        examples = ", ".join(_code(text_of(example)) for example in row.examples)
        cells = (f"`{row.of.kind}`", row.of.usual_severity.value, examples, row.meaning, row.remedy)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    """Text as code, in which backticks may stand."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"
