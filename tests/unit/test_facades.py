"""Names that packages export lazily, by the name of a module: no type checker and no linter sees where they lead."""

from __future__ import annotations

from importlib import import_module

import pytest

from unbroken_lab.experiments.registry import kind_of, names

EXPORTS = [
    (package, name)
    for package in ("unbroken", "unbroken.testing", "unbroken.client")
    for name in import_module(package).__all__
]


@pytest.mark.parametrize(("package", "name"), EXPORTS)
def test_an_exported_name_leads_somewhere(package: str, name: str) -> None:
    assert getattr(import_module(package), name) is not None


@pytest.mark.parametrize("name", names())
def test_a_registered_experiment_can_be_loaded(name: str) -> None:
    assert kind_of(name).__name__
