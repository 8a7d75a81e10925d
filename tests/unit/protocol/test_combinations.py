"""Which policies go together: the code, the page about it, and the policies that there are."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from unbroken.errors import UnbrokenError
from unbroken.protocol.combinations import NAMES, available, missing_policies, require_policies, used, why_not
from unbroken.protocol.registry import POLICIES
from unbroken.protocol.values.layout import Topology

PAGE = Path(__file__).parents[3] / "docs" / "policies.md"


def test_the_page_has_the_tables_of_the_code() -> None:
    lines = PAGE.read_text().splitlines()
    for name in NAMES:
        cells = ["" if name == other else "no" if why_not(name, other) else "yes" for other in NAMES]
        assert f"| `{name}` | {' | '.join(cells)} |" in lines
    for one, other in combinations(NAMES, 2):
        why = why_not(one, other)
        assert why is None or any(f"`{one}` with `{other}`" in line and line.endswith(f"| {why} |") for line in lines)


def test_every_policy_is_registered_and_named() -> None:
    assert set(POLICIES) == set(NAMES)
    packages = [line.package for line in POLICIES.values()]
    assert all(f"(../src/unbroken/protocol/policies/{package}/)" in PAGE.read_text() for package in packages)


def test_a_plain_flow_uses_no_policy() -> None:
    assert used(Topology(("source",), {"s": 1}, ("sink",), (("source", "s"), ("s", "sink")), {"s": 2})) == set()


def test_what_a_policy_is_built_on_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(POLICIES, "fork")
    assert not available("undo") and not available("fork") and available("leader")


def test_a_flow_that_asks_for_a_removed_policy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(POLICIES, "cluster")
    edges = (("source", "s"), ("s", "sink"))
    topology = Topology(("source",), {"s": 1}, ("sink",), edges, {"s": 2}, whole=True)
    assert missing_policies(topology) == ["cluster"]
    with pytest.raises(UnbrokenError, match="cluster"):
        require_policies(topology)
