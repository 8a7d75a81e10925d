"""A name of a type stands for one thing: of a class everywhere, of an alias in the product."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (ROOT / "src" / "unbroken", ROOT / "lab" / "src" / "unbroken_lab")

SIMULATOR = "lab/src/unbroken_lab/sim/"

SHARED = frozenset(
    {
        "Arrivals",
        "Controller",
        "Fault",
        "Kernel",
        "Lane",
        "Member",
        "OrderLog",
        "Run",
        "Sink",
        "Snapshots",
        "Step",
        "Suspicion",
        "Unit",
        "Window",
    }
)
"""Names that the simulator still has for something else than the product. All others are used once."""

CAP_WORDS = re.compile(r"[A-Z]+[a-z][A-Za-z0-9]*")


def type_names(source: str) -> Iterator[tuple[str, str | None]]:
    """The classes and aliases of a module, each alias with its meaning; those with an underscore are its own matter.

    Two modules may have the same alias of the same type. Variables of types are no things, and mean nothing outside of
    a signature.
    """
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, None
    for node in module.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                if CAP_WORDS.fullmatch(name) and not _is_variable(value):
                    yield name, ast.unparse(value)


def _is_variable(value: ast.expr) -> bool:
    made = value.func if isinstance(value, ast.Call) else None
    return isinstance(made, ast.Name) and made.id in ("TypeVar", "ParamSpec")


def ambiguous(sources: dict[str, str]) -> dict[str, list[str]]:
    """The names that stand for several things, with the places of each."""
    homes: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
    for place, source in sources.items():
        for name, meaning in type_names(source):
            homes[name].append((place, meaning))
    return {
        name: [place for place, _ in found]
        for name, found in homes.items()
        if len(found) > 1 and (len({meaning for _, meaning in found}) > 1 or found[0][1] is None)
    }


def without_aliases(source: str) -> str:
    """The classes of a module alone. Aliases of an experiment are its own matter."""
    return "".join(f"class {name}: ...\n" for name, meaning in type_names(source) if meaning is None)


def test_no_two_types_have_the_same_name() -> None:
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for package in PACKAGES
        for path in sorted(package.rglob("*.py"))
    }
    assert len(sources) > 600, "types are looked for where they are not"
    product = {place: text for place, text in sources.items() if place.startswith("src/")}
    assert not ambiguous(product)
    outside = {place: without_aliases(text) for place, text in sources.items() if not place.startswith(SIMULATOR)}
    assert not ambiguous(outside)
    assert ambiguous({place: without_aliases(text) for place, text in sources.items()}).keys() <= SHARED


def test_aliases_are_names_of_types_as_classes_are() -> None:
    alias, other, single = "Cut = dict[str, int]\n", "Cut: TypeAlias = list[int]\n", "class Cut: ...\n"
    assert ambiguous({"a": single, "b": single}) == {"Cut": ["a", "b"]}
    assert ambiguous({"a": single, "b": alias}) == {"Cut": ["a", "b"]}
    assert ambiguous({"a": alias, "b": other}) == {"Cut": ["a", "b"]}
    assert not ambiguous({"a": alias, "b": alias}), "the same type under the same name"
    assert not ambiguous({"a": alias, "b": "Cut = TypeVar('Cut')\n", "c": "CUT = 1\n_Cut = int\n"})
