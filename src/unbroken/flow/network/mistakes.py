"""The mistakes in a network: collected while it is read, each with its line, all of them reported together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from unbroken.errors import Problem, WrongValue
from unbroken.flow.network.document import DocumentEntry, Mistake, Value
from unbroken.flow.settings import unit_of
from unbroken.wording import choices

_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "sequence_type": "a list",
    "sequence_str": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
"""What a value of the document has to be, by pydantic's word for the failure."""


class Mistakes:
    """Collects what is wrong with one file, and knows how to say where that is."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._found: list[tuple[int, Problem]] = []

    def where(self, line: int, part: str = "") -> str:
        return f"{self._file}:{line}, {part}" if part else f"{self._file}:{line}"

    def add(self, line: int, part: str, what: str, remedy: str) -> None:
        self._found.append((line, Problem(self.where(line, part), what, remedy)))

    def add_all(self, mistakes: Iterable[Mistake]) -> None:
        for mistake in mistakes:
            self.add(mistake.line, "", mistake.what, mistake.remedy)

    @property
    def problems(self) -> list[Problem]:
        """All that was found, in the order of the file."""
        return [problem for _, problem in sorted(self._found, key=lambda found: found[0])]


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys of a model, as they are written in the document."""
    return [field.alias or name for name, field in model.model_fields.items()]


def explain(
    error: ValidationError,
    model: type[BaseModel],
    entry: DocumentEntry,
    part: str,
    mistakes: Mistakes,
    elsewhere: Mapping[str, str],
) -> None:
    """Turn what pydantic refused in ``entry`` into mistakes with lines and remedies.

    Several complaints about one place, as they come from a choice of types, become one. Keys that have a meaning in
    another place are in ``elsewhere``, with what to do.
    """
    places: dict[tuple[int, str], list[Any]] = {}
    for detail in error.errors():
        line, path = _place(entry, detail)
        places.setdefault((line, path), []).append(detail)
    for (line, path), details in places.items():
        if any(other.startswith(f"{path}.") for _, other in places):
            continue  # It is right in one way but for something inside, which is told, and wrong in another way.
        what, remedy = _sentence(path, details, model)
        misplaced = details[0]["type"] == "extra_forbidden" and path in elsewhere
        mistakes.add(line, part, f"{what} here" if misplaced else what, elsewhere[path] if misplaced else remedy)


def _place(entry: DocumentEntry, detail: Any) -> tuple[int, str]:
    """Line and name of what a complaint is about.

    Steps that the document does not have are pydantic's own, such as the name of a type in a choice; what is missing
    is not there either, and is named by the last step.
    """
    line, value = entry.line, entry.value
    path: list[str] = []
    for step in detail["loc"]:
        found = _step(value, step)
        if found is None:
            continue
        line, value = found.line, found.value
        path.append(str(step))
    if detail["type"] == "missing":
        path.append(str(detail["loc"][-1]))
    return line, ".".join(path)


def _step(value: Value, step: Any) -> DocumentEntry | None:
    content = value.content
    if isinstance(content, dict):
        return content.get(step)
    if isinstance(content, tuple) and isinstance(step, int) and step < len(content):
        return DocumentEntry(content[step].line, content[step])
    return None


def _sentence(path: str, details: list[Any], model: type[BaseModel]) -> tuple[str, str]:
    first = details[0]
    inner = _model_at(model, first["loc"][:-1])
    described = _description(inner, first["loc"], path)
    if first["type"] == "extra_forbidden":
        return f"the key {path!r} is not known", choices(keys_of(inner), str(first["loc"][-1]))
    if first["type"] == "missing":
        return f"{path!r} is missing", described or f"its keys are {', '.join(keys_of(inner))}"
    if first["type"] == "too_short":
        return f"{path} is empty", described or "give at least one"
    if first["type"] == "literal_error":
        return f"{path} cannot be {_short(first['input'])}", f"use {first['ctx']['expected']}"
    kinds = " or ".join(dict.fromkeys(kind for kind in map(_kind, details) if kind))
    if kinds:
        subject = path or "it"
        return f"{subject} must be {kinds}, got {_short(first['input'])}", described or f"write {kinds}"
    raised = first.get("ctx", {}).get("error")
    what, remedy = str(first["msg"]).removeprefix("Value error, "), ""
    if isinstance(raised, WrongValue):
        what, remedy = raised.flaw.what, raised.flaw.remedy
    what = f"{path}: {what}" if path else what
    if first["type"] != "value_error":
        unit = unit_of(inner.model_fields.get(path), first["type"])
        what += f"{unit}, got {_short(first['input'])}{unit}"
    return what, remedy or described or "correct the value"


def _kind(detail: Any) -> str | None:
    if detail["type"] == "is_instance_of":
        return "a list" if detail["ctx"]["class"] == "Sequence" else None
    return _KINDS.get(detail["type"])


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _model_at(model: type[BaseModel], loc: tuple[Any, ...]) -> type[BaseModel]:
    """The innermost model that a place lies in."""
    for step in loc:
        field = next((f for name, f in model.model_fields.items() if step in (name, f.alias)), None)
        if field is None:
            continue
        inner = [kind for kind in (field.annotation, *getattr(field.annotation, "__args__", ())) if _is_model(kind)]
        if inner:
            model = inner[0]
    return model


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _description(model: type[BaseModel], loc: tuple[Any, ...], path: str) -> str:
    """What the innermost field of a place is for; empty if that is not said."""
    for step in reversed(loc):
        for name, field in model.model_fields.items():
            if step in (name, field.alias) and field.description:
                return f"{step}: {field.description}" if step in path.split(".") else str(field.description)
    return ""
