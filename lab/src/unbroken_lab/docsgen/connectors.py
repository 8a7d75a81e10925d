"""The reference of sources and sinks, from their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import unbroken
from unbroken.connectors.base import SinkConnector, SourceConnector
from unbroken.errors import require
from unbroken.flow.network import parts
from unbroken_lab.docsgen.marks import table

EXTRAS = {"Kafka": "kafka", "KafkaSink": "kafka", "PostgreSQL": "postgres", "Delta": "delta"}
"""What has to be installed beside the package itself."""

MORE = {
    "Generator": "flows.md#generator",
    "Files": "flows.md#files",
    "Push": "flows.md#push",
    "Kafka": "kafka.md#reading-from-kafka",
    "KafkaSink": "kafka.md#writing-to-kafka",
    "PostgreSQL": "sinks.md#postgresql",
    "Delta": "sinks.md#delta-lake",
    "Parquet": "sinks.md#files",
    "JsonLines": "sinks.md#files",
    "Client": "flows.md#reading-results-in-a-program",
    "Console": "flows.md#sinks",
    "Call": "guarantees.md#a-function-as-a-sink",
}
"""Where a connector is explained."""

_SECTION = re.compile(r"\n\s*(Parameters|Examples|Raises|Returns)\n\s*-+\n")


@dataclass(frozen=True)
class Described:
    """What a docstring says: a text, and a meaning for each parameter."""

    text: str
    parameters: Mapping[str, str]


def connectors(kind: type) -> dict[str, type]:
    """The public connectors of a kind, by name."""
    public = {name: getattr(unbroken, name) for name in unbroken.__all__}
    return {name: it for name, it in public.items() if inspect.isclass(it) and issubclass(it, kind)}


def described(connector: type) -> Described:
    """The docstring of a connector taken apart; in its ``Parameters``, names are at the margin and texts below."""
    text = inspect.cleandoc(connector.__doc__ or "")
    pieces = _SECTION.split(f"\n{text}\n")
    sections = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    parameters: dict[str, str] = {}
    for names, meaning in re.findall(r"^(\S.*)\n((?:[ ]+.*\n?|\n)+)", sections.get("Parameters", ""), re.MULTILINE):
        for name in names.split(", "):
            parameters[name] = " ".join(meaning.split())
    return Described(pieces[0].strip(), parameters)


def sources() -> str:
    return "\n".join(_entry(name, it, parts.SOURCES) for name, it in connectors(SourceConnector).items())


def sinks() -> str:
    found = connectors(SinkConnector)
    rows = [(f"[`{name}`](#{name.lower()})", *_promises(it)) for name, it in found.items()]
    columns = ("sink", "a unit that comes again", "tentative results")
    entries = (_entry(name, it, parts.SINKS) for name, it in found.items())
    return "\n".join([table(columns, rows), *entries])


def _promises(sink: type) -> tuple[str, str]:
    """How a sink stands by what it is delivered twice, or before it is final."""
    if sink.client:  # type: ignore[attr-defined]
        return "is left out by its number", "yes; readers can leave them out"
    once = "is recognised" if sink.idempotent else "is handed over again"  # type: ignore[attr-defined]
    parameters = inspect.signature(sink).parameters
    if sink.__name__ == "KafkaSink":
        once = "is recognised, unless `exactly_once=False`"
    choice = next((name for name in ("tentative", "status") if name in parameters), None)
    if choice is not None:
        return once, f"with `{choice}=`"
    return once, "yes" if sink.tentative else "no"  # type: ignore[attr-defined]


def _entry(name: str, connector: type, in_networks: Mapping[str, Callable[..., object]]) -> str:
    told = described(connector)
    signature = inspect.signature(connector)
    missing = [parameter for parameter in signature.parameters if parameter not in told.parameters]
    require(bool(told.text) and not missing, f"the docstring of {name} does not describe {missing or 'it'}")
    lines = [f"### {name}", "", told.text, ""]
    notes = []
    if name in EXTRAS:
        notes.append(f"Needs `pip install 'unbroken[{EXTRAS[name]}]'`.")
    network = next((key for key, made in in_networks.items() if made is connector), None)
    notes.append(f"In a network: `{network}`." if network else "Not in networks.")
    notes.append(f"More: [{MORE[name].split('#')[0].removesuffix('.md')}]({MORE[name]}).")
    lines += [" ".join(notes), ""]
    rows = [
        (f"`{parameter.name}`", _default(parameter), told.parameters[parameter.name])
        for parameter in signature.parameters.values()
    ]
    if rows:
        lines.append(table(("parameter", "default", "meaning"), rows))
    return "\n".join(lines)


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is inspect.Parameter.empty:
        return "needed"
    if value is None or value == () or value == "":
        return "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"`{value!r}`".replace("'", '"')
