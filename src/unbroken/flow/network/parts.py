"""Reads the parts of a document: what is declared under which name, checked for itself.

A part with a mistake is left out, after all of its mistakes are noted; its name stays known, so that others may refer
to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, ValidationError

from unbroken.connectors.base import SinkConnector, SourceConnector
from unbroken.connectors.delta.sink import Delta
from unbroken.connectors.files.sinks import Client, Console, JsonLines, Parquet
from unbroken.connectors.files.source import Files
from unbroken.connectors.kafka.sink import KafkaSink
from unbroken.connectors.kafka.source import Kafka
from unbroken.connectors.postgres.sink import PostgreSQL
from unbroken.connectors.push.source import Push
from unbroken.errors import UnbrokenError, WrongValue
from unbroken.flow.availability import WAIT, Availability
from unbroken.flow.dataflow import ORDERINGS, Dataflow
from unbroken.flow.network.base import Operator
from unbroken.flow.network.document import DocumentEntry, Value
from unbroken.flow.network.mistakes import Mistakes, explain, keys_of
from unbroken.flow.network.operators import OPERATORS
from unbroken.flow.network.signatures import given, model_of
from unbroken.flow.settings import Settings
from unbroken.wording import choices

Model = TypeVar("Model", bound=BaseModel)
Connector = TypeVar("Connector", SourceConnector, SinkConnector)

SOURCES: dict[str, Callable[..., SourceConnector]] = {"files": Files, "kafka": Kafka, "push": Push}
SINKS: dict[str, Callable[..., SinkConnector]] = {
    "parquet": Parquet,
    "jsonlines": JsonLines,
    "console": Console,
    "client": Client,
    "kafka": KafkaSink,
    "postgresql": PostgreSQL,
    "delta": Delta,
}


def _lists(value: Any) -> Any:
    """One column may be given without a list around it."""
    if isinstance(value, Mapping):
        return {name: _lists(columns) for name, columns in value.items()}
    return [value] if isinstance(value, str) else value


def _bound(value: Any) -> Any:
    """A bound on the delay of results is a mapping; there is one word for none."""
    if value is None or value == WAIT or isinstance(value, Mapping):
        return value
    raise WrongValue(f"{value!r} is no bound on the delay", f"write {{max_delay: 3s}}, or {WAIT} for none")


AVAILABILITY = model_of(Availability)

Bound = Annotated[AVAILABILITY | str | None, BeforeValidator(_bound)]  # type: ignore[valid-type]

OPTIONS = model_of(Dataflow.segment, without=("name",), prepare={"shard_by": _lists}, written={"availability": Bound})
"""What can be said of every operator beside its own parameters: whatever a segment can be declared with."""

SOURCE_OPTIONS = model_of(Dataflow.source, without=("name", "connector"))
"""What can be said of every source beside the parameters of its kind."""

SINK_OPTIONS = model_of(Dataflow.sink, without=("name", "segment", "connector"))
"""What can be said of every sink beside its input and the parameters of its kind."""


def _empty(value: Any) -> Any:
    """A key with nothing behind it stands for an empty mapping."""
    return {} if value is None else value


Section = Annotated[dict[str, Any], BeforeValidator(_empty)]


class NetworkKeys(BaseModel):
    """The keys of a document."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="the name of the dataflow")
    replicas: StrictInt = Field(default=2, description="copies of every operator unless it says otherwise")
    ha: str | None = Field(default=None, description="how operators are kept available unless they say otherwise")
    ordering: str | None = Field(
        default=None, description=f"what orders the input of operators: {', '.join(ORDERINGS[:-1])} or {ORDERINGS[-1]}"
    )
    availability: Bound = Field(default=None, description="the bound on the delay of results while input is missing")
    settings: Section = Field(default={}, description="those of a dataflow, such as nodes: 3")
    sources: Section = Field(description="a name for each source, and what it is")
    operators: Section = Field(description="a name for each operator, its input, and what it does")
    sinks: Section = Field(description="a name for each sink, its input, and what it is")


@dataclass(frozen=True)
class DeclaredOperator:
    """An operator as it was written, with what is not written filled in."""

    kind: str
    inputs: tuple[str, ...]
    operator: Operator
    options: Mapping[str, Any]
    entry: DocumentEntry


def read_head(document: Value, mistakes: Mistakes) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Name, options and settings of the dataflow; what is wrong is replaced by something that does no harm."""
    entry = DocumentEntry(document.line, document)
    content = document.content if isinstance(document.content, dict) else {}
    written: dict[str, Any] = {key: found.value.content for key, found in content.items()}
    types: dict[str, type] = {"replicas": int, "ha": str, "ordering": str}
    options = {key: written[key] for key, wanted in types.items() if type(written.get(key)) is wanted}
    try:
        head = NetworkKeys.model_validate(document.plain())
    except ValidationError as error:
        tuned = {name: f"it is one of the settings: settings: {{{name}: ...}}" for name in Settings.model_fields}
        explain(error, NetworkKeys, entry, "", mistakes, tuned)
    else:
        options["availability"] = _declared(head.availability)
        for kind in ("sources", "operators", "sinks"):
            if not getattr(head, kind):
                line = member(document, kind, entry).line
                mistakes.add(line, "", f"there are no {kind}", f"declare at least one: {kind}: {{name: ...}}")
    name, settings = written.get("name"), content.get("settings")
    if "ordering" in section(document, "settings") and "ordering" not in content:
        # It is told that this is the wrong place, but what is said of sources is meant so.
        misplaced = section(document, "settings")["ordering"].value.content
        options |= {"ordering": misplaced} if isinstance(misplaced, str) else {}
    return (
        name if isinstance(name, str) else "unnamed",
        options,
        {} if settings is None else _settings(settings, mistakes),
    )


def member(value: Value, key: str, otherwise: DocumentEntry) -> DocumentEntry:
    """What a mapping has under a key; ``otherwise`` if it is not there."""
    return value.content.get(key, otherwise) if isinstance(value.content, dict) else otherwise


def section(document: Value, name: str) -> dict[str, DocumentEntry]:
    """The parts of a kind by their names; none if the section is not a mapping, which is noted elsewhere."""
    content = document.content
    found = content[name].value.content if isinstance(content, dict) and name in content else None
    return found if isinstance(found, dict) else {}


def _settings(entry: DocumentEntry, mistakes: Mistakes) -> dict[str, Any]:
    values = entry.value.plain()
    if not isinstance(values, dict):
        return {}  # The head says so.
    beside = {key: f"write it at the left margin, beside settings: {key}: ..." for key in keys_of(NetworkKeys)}
    return values if _checked(Settings, entry, "settings", mistakes, beside) is not None else {}


def read_source(
    name: str, entry: DocumentEntry, mistakes: Mistakes
) -> tuple[SourceConnector | None, Mapping[str, Any] | None]:
    """The connector of a source and what else is said of it; None for what has a mistake."""
    part = f"source {name}"
    chosen = _choose(entry, part, SOURCES, keys_of(SOURCE_OPTIONS), mistakes)
    options = _options(SOURCE_OPTIONS, entry, part, mistakes)
    if chosen is None:
        return None, options
    return _connector(SOURCES[chosen[0]], chosen[1], part, mistakes, _beside(SOURCE_OPTIONS, chosen[0])), options


def read_sink(
    name: str, entry: DocumentEntry, mistakes: Mistakes
) -> tuple[tuple[str, ...], SinkConnector | None, Mapping[str, Any] | None]:
    """The input of a sink, its connector and what else is said of it; None for what has a mistake."""
    part = f"sink {name}"
    inputs = _inputs(entry, part, mistakes)
    if len(inputs) > 1:
        mistakes.add(entry.line, part, "a sink takes the results of one operator", "join them with 'union' before")
    chosen = _choose(entry, part, SINKS, ("input", *keys_of(SINK_OPTIONS)), mistakes)
    options = _options(SINK_OPTIONS, entry, part, mistakes)
    if chosen is None:
        return inputs[:1], None, options
    connector = _connector(SINKS[chosen[0]], chosen[1], part, mistakes, _beside(SINK_OPTIONS, chosen[0]))
    return inputs[:1], connector, options


def read_operator(
    name: str, entry: DocumentEntry, mistakes: Mistakes
) -> tuple[tuple[str, ...], DeclaredOperator | None]:
    """The inputs of an operator, and all of it if it has no mistake."""
    part = f"operator {name}"
    inputs = _inputs(entry, part, mistakes)
    chosen = _choose(entry, part, OPERATORS, ("input", *keys_of(OPTIONS)), mistakes)
    options = _options(OPTIONS, entry, part, mistakes)
    if chosen is None:
        return inputs, None
    kind, body = chosen
    operator = _checked(OPERATORS[kind], body, part, mistakes, _beside(OPTIONS, kind))
    enough = _enough(kind, inputs, part, entry, mistakes)
    if operator is None or options is None or not enough:
        return inputs, None
    flaws = operator.problems(inputs)
    for flaw in flaws:
        mistakes.add(body.line, part, flaw.what, flaw.remedy)
    return inputs, None if flaws else DeclaredOperator(kind, inputs, operator, options, entry)


def _inputs(entry: DocumentEntry, part: str, mistakes: Mistakes) -> tuple[str, ...]:
    found = member(entry.value, "input", entry)
    if found is entry:
        if isinstance(entry.value.content, dict):
            mistakes.add(entry.line, part, "'input' is missing", "name the source or operator whose rows it takes")
        return ()
    plain = found.value.plain()
    names = [plain] if isinstance(plain, str) else plain
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        mistakes.add(found.line, part, f"input must be a name or a list of names, got {plain!r}", "name its inputs")
        return ()
    return tuple(names)


def _enough(kind: str, inputs: tuple[str, ...], part: str, entry: DocumentEntry, mistakes: Mistakes) -> bool:
    operator, count = OPERATORS[kind], len(inputs)
    if not inputs:
        return False  # Noted when they were read.
    least, most = operator.least_inputs, operator.most_inputs
    if count >= least and (most is None or count <= most):
        return True
    wanted = f"{least}" if least == most else f"at least {least}"
    plural = "input" if wanted == "1" else "inputs"
    remedy = "bring them together with 'union' or 'join' before" if most == 1 else "name them: input: [one, other]"
    mistakes.add(member(entry.value, "input", entry).line, part, f"{kind} takes {wanted} {plural}, not {count}", remedy)
    return False


def _choose(
    entry: DocumentEntry, part: str, kinds: Iterable[str], others: Iterable[str], mistakes: Mistakes
) -> tuple[str, DocumentEntry] | None:
    """The one key that says what a part is; ``others`` are keys that it may have beside that."""
    content = entry.value.content
    what = part.partition(" ")[0]
    if not isinstance(content, dict):
        remedy = f"write for example {{{next(iter(kinds))}: {{...}}}}; {choices(kinds)}"
        mistakes.add(entry.line, part, f"it must be a mapping, got {entry.value.plain()!r}", remedy)
        return None
    found = [key for key in content if key in kinds]
    unknown = [key for key in content if key not in kinds and key not in others]
    for key in unknown:
        if what == "source" and key == "generator":
            remedy = "rows are made by a Python function, so write this flow in Python, or use files or push"
            mistakes.add(content[key].line, part, "a network cannot have a generator", remedy)
            continue
        mistakes.add(content[key].line, part, f"the key {key!r} is not known", choices((*kinds, *others), key))
    if len(found) > 1:
        names = " and ".join(repr(key) for key in found)
        remedy = f"one entry is one {what}: give each a name of its own"
        mistakes.add(content[found[1]].line, part, f"{names} are in one entry", remedy)
        return None
    if not found:
        if not unknown:
            mistakes.add(entry.line, part, f"nothing says what this {what} is", choices(kinds))
        return None
    return found[0], content[found[0]]


def _options(model: type[BaseModel], entry: DocumentEntry, part: str, mistakes: Mistakes) -> Mapping[str, Any] | None:
    """What an entry says beside what it is."""
    content = entry.value.content
    if not isinstance(content, dict):
        return None
    own = {key: value for key, value in content.items() if key in keys_of(model)}
    options = _checked(model, DocumentEntry(entry.line, Value(entry.value.line, own)), part, mistakes, {})
    return None if options is None else {name: _declared(value) for name, value in given(options).items()}


def _declared(value: Any) -> Any:
    """What was written as a mapping and is an object in Python."""
    return Availability(**given(value)) if isinstance(value, AVAILABILITY) else value


def _beside(options: type[BaseModel], kind: str) -> dict[str, str]:
    """What to do with options that were written among the parameters of a kind."""
    return {key: f"write it beside {kind}, not within: {{{kind}: {{...}}, {key}: ...}}" for key in keys_of(options)}


def _checked(
    model: type[Model], entry: DocumentEntry, part: str, mistakes: Mistakes, elsewhere: Mapping[str, str]
) -> Model | None:
    try:
        return model.model_validate(_empty(entry.value.plain()))
    except ValidationError as error:
        explain(error, model, entry, part, mistakes, elsewhere)
        return None


def _connector(
    declared: Callable[..., Connector],
    entry: DocumentEntry,
    part: str,
    mistakes: Mistakes,
    elsewhere: Mapping[str, str],
) -> Connector | None:
    parameters = _checked(model_of(declared), entry, part, mistakes, elsewhere)
    if parameters is None:
        return None
    try:
        return declared(**given(parameters))
    except UnbrokenError as error:
        line = member(entry.value, "schema", entry).line
        mistakes.add(line, part, error.what, error.remedy or "correct the declaration")
        return None
