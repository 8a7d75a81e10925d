"""Every instruction has one method, and every shell has all of them."""

from __future__ import annotations

import re
from typing import Any, get_args, get_type_hints

import pytest

from unbroken.node.effects import NodeEffects
from unbroken.protocol.effects import Effects, carry_out
from unbroken.protocol.instructions import Instruction, RepairUnit, StoreUnit
from unbroken.protocol.registry import counterparts, declared
from unbroken.protocol.vocabulary import PolicyEffects, PolicyInstruction
from unbroken_lab.sim.effects import SimulatedEffects

KINDS: list[type[Any]] = [kind for kind in get_args(Instruction) if kind is not PolicyInstruction]

STEPS: list[type[Any]] = declared(PolicyInstruction)  # type: ignore[type-abstract]

ROWS = object()


def method_of(kind: type[Any]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


class Noted:
    """Notes which method is called with what."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.policies: list[PolicyEffects] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, arguments))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_instruction_is_carried_out_by_the_method_of_its_name(kind: type[Any]) -> None:
    step, noted = object.__new__(kind), Noted()
    carry_out(noted, step, ROWS)  # type: ignore[arg-type]
    rows = (ROWS,) if kind in (StoreUnit, RepairUnit) else ()
    [(name, arguments)] = noted.calls
    assert name == method_of(kind)
    assert arguments[0] is step and arguments[1:] == rows


def test_there_is_no_method_without_an_instruction() -> None:
    assert Effects.__abstractmethods__ == {method_of(kind) for kind in KINDS}


@pytest.mark.parametrize("shell", [NodeEffects, SimulatedEffects])
def test_a_shell_leaves_nothing_out(shell: type[Any]) -> None:
    assert issubclass(shell, Effects) and not shell.__abstractmethods__


@pytest.mark.parametrize("kind", STEPS, ids=lambda kind: kind.__name__)
def test_an_instruction_of_a_policy_is_carried_out_by_the_interface_of_the_policy(kind: type[Any]) -> None:
    [interface] = [found for found in declared(PolicyEffects) if hasattr(found, method_of(kind))]
    step, noted = object.__new__(kind), Noted()
    for other in declared(PolicyEffects):
        methods = {name: getattr(noted, name) for name in other.__abstractmethods__}  # type: ignore[attr-defined]
        noted.policies.append(type("Shell", (other,), {name: staticmethod(do) for name, do in methods.items()})())
    carry_out(noted, step, ROWS)  # type: ignore[arg-type]
    assert noted.calls == [(method_of(kind), (step,))]
    assert interface.__module__ == kind.__module__


def test_no_interface_of_a_policy_has_a_method_without_an_instruction() -> None:
    methods = [name for found in declared(PolicyEffects) for name in found.__abstractmethods__]  # type: ignore[attr-defined]
    assert sorted(methods) == sorted(method_of(kind) for kind in STEPS)


@pytest.mark.parametrize("shell", ["unbroken.node.policies", "unbroken_lab.sim.policies"])
def test_a_shell_does_everything_for_every_policy(shell: str) -> None:
    """A module of a shell builds what has all methods of the interface of its policy."""
    for module, interface in zip(counterparts(shell), declared(PolicyEffects), strict=True):
        built = get_type_hints(module.build, None, {"Node": object, "NodeProcess": object})["return"]
        assert issubclass(built, interface) and not built.__abstractmethods__


def test_a_step_that_no_part_of_the_shell_carries_out_is_noticed() -> None:
    step = object.__new__(STEPS[0])
    with pytest.raises(LookupError, match="the shell has no"):
        step.carry_out([])


def test_what_is_no_instruction_is_refused() -> None:
    with pytest.raises(AssertionError):
        carry_out(Noted(), object(), None)  # type: ignore[arg-type]
