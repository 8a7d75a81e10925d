"""The reference of the status schema: every type with its fields, from the types and the texts below their fields."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from textwrap import dedent
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import Struct

from unbroken.errors import require
from unbroken.observe.status.flow import FlowStatus, FlowTopology
from unbroken.observe.status.node import ReportedNotice
from unbroken_lab.docsgen.marks import table

ROOTS: tuple[type[Struct], ...] = (FlowStatus, FlowTopology, ReportedNotice)
"""What commands print; all other types are parts of these."""

_NAMES = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "None": "null"}


def status() -> str:
    """Each type as a table of its fields, those first that commands print."""
    parts = [_section(kind) for kind in types(*ROOTS)]
    return "\n".join(parts)


def types(*roots: type[Struct]) -> list[type[Struct]]:
    """The types of a schema, each once, in the order in which its fields lead to them."""
    found: dict[type[Struct], None] = {}

    def visit(kind: type[Struct]) -> None:
        if kind not in found:
            found[kind] = None
            for hint in get_type_hints(kind).values():
                for part in _parts(hint):
                    if isinstance(part, type) and issubclass(part, Struct):
                        visit(part)

    for root in roots:
        visit(root)
    return list(found)


def texts(kind: type[Struct]) -> dict[str, str]:
    """The text below each field of a type, also of those that it inherits."""
    bases = [base for base in kind.__bases__ if issubclass(base, Struct) and base is not Struct]
    out = {name: text for base in bases for name, text in texts(base).items()}
    (node,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    for field, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            constant = after.value if isinstance(after, ast.Expr) else None
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                out[field.target.id] = constant.value
    return out


def _section(kind: type[Struct]) -> str:
    described, hints = texts(kind), get_type_hints(kind)
    rows = []
    for field in msgspec.structs.fields(kind):
        require(field.name in described, f"{kind.__name__}.{field.name} has no description")
        rows.append((f"`{field.encode_name}`", _written(hints[field.name]), described[field.name]))
    return f"### {kind.__name__}\n\n{inspect.getdoc(kind)}\n\n{table(('field', 'type', 'meaning'), rows)}"


def _written(hint: Any) -> str:
    """A type in words; parts of the schema are links."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(f"`{one.value}`" for one in hint)
    arguments = get_args(hint)
    if not arguments:
        return _NAMES[re.sub(r"^NoneType$", "None", getattr(hint, "__name__", str(hint)))]
    kind = getattr(hint, "__origin__", None)
    if kind is tuple:
        inner = [_written(one) for one in arguments if one is not Ellipsis]
        return f"list of {inner[0]}" if Ellipsis in arguments else f"list: {', '.join(inner)}"
    if kind is Mapping:
        return f"object of {_written(arguments[1])} by name"
    return " or ".join(_written(one) for one in arguments)


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for one in get_args(hint):
        yield from _parts(one)
