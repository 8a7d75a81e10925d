"""A policy is removed with its package in every layer and its line in the registry: nothing that only it needs is left,
the product and its codecs do without it, plain flows run on, others are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from functools import cache

import grimp
import pytest

from unbroken.protocol.registry import POLICIES

PLACES = ("unbroken.protocol.policies", "unbroken.node.policies", "unbroken_lab.sim.policies")
"""Where a policy may have a package, a layer each."""

WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

name, package, *PLACES = sys.argv[1:]

REMOVED = {place + "." + package for place in PLACES}

class Removed(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        parent, _, module = fullname.rpartition(".")
        if fullname in REMOVED or parent in REMOVED:
            raise ModuleNotFoundError(fullname)

sys.meta_path.insert(0, Removed())

from unbroken.protocol.registry import POLICIES
del POLICIES[name]

from unbroken.errors import UnbrokenError
from unbroken.protocol.combinations import require_policies
from unbroken_lab.sim.campaign import Options, Run
from unbroken_lab.sim.policy_flows import flow_with, topology_with

for other in [other for other, line in POLICIES.items() if name in line.needs]:
    del POLICIES[other]

import unbroken.cli.run
import unbroken.node.main
import unbroken.observe.tracing.tracing
from unbroken.codecs.journal import JournalForm
from unbroken.protocol.messages import Ping
from unbroken.protocol.registry import offered
from unbroken.transport.codec import MESSAGE

for place in PLACES:
    for what in ("FEEDER", "SHARD_DOCUMENTS", "INGRESS", "SOURCES"):
        assert not any(getattr(kind, "__module__", "") in REMOVED for kind in offered(place, what))
JournalForm()
assert MESSAGE.decode(MESSAGE.encode(Ping(7))) == Ping(7)
left = [module for module in sys.modules if module in REMOVED or module.rpartition(".")[0] in REMOVED]
assert not left, left

outcome = Run(2, Options(length_s=3.0, mean_s=1.0), given=flow_with(())).outcome()
assert outcome.ok and outcome.counts["delivered"], outcome.failure
try:
    require_policies(topology_with((name,)))
except UnbrokenError as error:
    assert name in str(error), error
else:
    raise AssertionError("a flow with the removed policy is taken")
"""


@pytest.mark.parametrize("name", POLICIES)
def test_a_plain_flow_runs_without_a_policy(name: str) -> None:
    package = POLICIES[name].package
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT, name, package, *PLACES], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr[-2_000:]


@cache
def imports() -> grimp.ImportGraph:
    """Who imports what in the product, also in functions, but not what is for type checkers alone."""
    return grimp.build_graph("unbroken", exclude_type_checking_imports=True, cache_dir=None)


def packages_of(package: str) -> set[str]:
    """The modules that are removed with a policy."""
    graph, places = imports(), [f"{place}.{package}" for place in PLACES]
    return {module for module in graph.modules if any(f"{module}.".startswith(f"{place}.") for place in places)}


def reached(roots: Collection[str], without: Collection[str]) -> set[str]:
    """The modules that are imported from some, directly or not, if others are gone."""
    graph, found, ahead = imports(), set[str](), [*roots]
    while ahead:
        module = ahead.pop()
        if module not in found and module not in without:
            found.add(module)
            ahead += graph.find_modules_directly_imported_by(module)
    return found


@pytest.mark.parametrize("name", POLICIES)
def test_nothing_is_left_that_only_a_removed_policy_needs(name: str) -> None:
    graph, removed = imports(), packages_of(POLICIES[name].package)
    assert removed, "a policy has a package"
    begins = {module for module in graph.modules if not graph.find_modules_that_directly_import(module)}
    others = [packages_of(line.package) for other, line in POLICIES.items() if other != name]
    roots = begins.union(*others) - removed
    packages = {module for module in graph.modules if graph.find_children(module)}
    assert reached(roots | removed, ()) - reached(roots, removed) - removed - packages == set()
