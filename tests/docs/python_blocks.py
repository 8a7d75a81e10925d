"""Running the Python of a page: its blocks one after the other, in one namespace, as a reader would type them.

What needs a running flow (reading its results, pushing rows) is given stand-ins that take the same arguments as the
real functions and answer with real objects. Flows that a page declares are collected, to be checked.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, create_autospec

import pyarrow as pa
import pytest

from docs.pages import blocks, write_files
from unbroken.client import PushClient, Reconciled, Result, Subscription, Undo
from unbroken.coordination.run_info import RunInfo
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.loading import load_flow
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken.testing import execution, verdict
from unbroken.testing import faults as faults_of
from unbroken.testing.input.inputs import read_inputs
from unbroken.testing.result import Run
from unbroken.testing.warm.pool import WarmCluster

ON_NODES = ("docs/testing.md",)
"""Pages whose tests look at results: those are run on real nodes, see ``tests/system/testing/test_page.py``."""


def run_python(page: str, monkeypatch: pytest.MonkeyPatch, directory: Path) -> list[Dataflow]:
    """Run all Python of a page in ``directory``; the flows that it declares, in their order."""
    stand_in(monkeypatch)
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(directory)
    write_files(page, directory)
    for path in directory.rglob("*.py"):
        # What another test has imported under this name was made somewhere else.
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    name = f"page_{Path(page).stem}"
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    flows: dict[int, Dataflow] = {}
    for block in blocks(page):
        if block.language != "python" or block.not_run is not None:
            continue
        # Lines before the block are left empty, so that tracebacks and problems name the line of the page.
        code = compile("\n" * (block.line - 1) + block.text, page, "exec")
        exec(code, module.__dict__)
        flows |= {id(value): value for value in vars(module).values() if isinstance(value, Dataflow)}
    if page not in ON_NODES:
        _run_tests(module, directory)
    return list(flows.values())


def _run_tests(module: types.ModuleType, directory: Path) -> None:
    """Call what pytest would call, with stand-ins for its fixtures."""
    fixtures = {"unbroken_cluster": create_autospec(WarmCluster, instance=True), "tmp_path": directory}
    for name, function in list(vars(module).items()):
        if name.startswith("test_") and inspect.isfunction(function):
            function(**{parameter: fixtures[parameter] for parameter in inspect.signature(function).parameters})


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks read results, push rows and find a run, without one."""
    from unbroken.client import subscription as client
    from unbroken.transport import auth

    subscribe = create_autospec(client.subscribe, side_effect=lambda *_, **__: _subscription())
    monkeypatch.setattr("unbroken.client.subscribe", subscribe)
    monkeypatch.setattr("unbroken.client.push_addresses", create_autospec(client.push_addresses, return_value=["h:1"]))
    monkeypatch.setattr("unbroken.transport.auth.read_token", create_autospec(auth.read_token, return_value="x" * 32))
    info = RunInfo("flow", "127.0.0.1:2181", Path("token"), Path("."), 1)
    monkeypatch.setattr(RunInfo, "read", classmethod(lambda cls, directory: info))
    pusher = create_autospec(PushClient, spec_set=True)
    pusher.return_value.__enter__.return_value = pusher.return_value
    pusher.of_run.return_value = pusher.return_value
    monkeypatch.setattr("unbroken.client.PushClient", pusher)
    monkeypatch.setattr("deltalake.DeltaTable", _delta_table)
    run = create_autospec(execution.run_with_faults, side_effect=_pretended)
    monkeypatch.setattr("unbroken.testing.execution.run_with_faults", run)
    same = create_autospec(verdict.assert_same_as_fault_free)
    monkeypatch.setattr("unbroken.testing.verdict.assert_same_as_fault_free", same)


def _pretended(flow: Any, input: Any, faults: Any = (), **_: Any) -> MagicMock:
    """A run of a test that did not take place; what it was asked for has to make sense."""
    faults_of.refuse_bad(faults)
    declared = flow if isinstance(flow, Dataflow) else load_flow(Path(flow))
    read_inputs(declared, input)
    run: MagicMock = create_autospec(Run, instance=True)
    return run


def _delta_table(url: str) -> Any:
    """A table here instead of the one in an object store."""
    from deltalake.table import DeltaTable
    from deltalake.writer import write_deltalake

    here = f"table-{abs(hash(url))}"
    for _ in range(3):
        write_deltalake(here, pa.table({"shop": ["a"], "amount": [1]}), mode="append")
    return DeltaTable(here)


def _subscription() -> MagicMock:
    """A subscription to a flow that has a failure, and ends."""
    stream = StreamId.parse("orders.0>live.0")
    table = pa.table({"user": ["ann"], "count": [1]})

    def result(number: int, *, stable: bool, correction: bool = False) -> Result:
        header = UnitHeader(stream, number, number, 0, Digest(1, 1, ()), stable=stable, since=number - 1)
        return Result(header, table, 0.0, correction)

    results = [result(1, stable=True), result(2, stable=False), result(2, stable=True, correction=True)]
    events = [*results[:2], Undo(stream, 1), results[2], Reconciled(stream, 2)]
    out: MagicMock = create_autospec(Subscription, instance=True, spec_set=True)
    out.__enter__.return_value = out
    out.__iter__.side_effect = lambda: iter(results)
    out.events.side_effect = lambda: _each(events)
    out.next.side_effect = lambda timeout_s=None: results.pop(0) if results else None
    return out


def _each(events: list[Any]) -> Iterator[Any]:
    yield from events
