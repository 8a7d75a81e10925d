"""Nodes that are reached at addresses other than those they announce."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from kit.support import TOKEN
from unbroken.cli import cli
from unbroken.coordination.documents import Member
from unbroken.coordination.routes import Routes
from unbroken.errors import UnbrokenError
from unbroken.node import main as node_main
from unbroken.node.main import NodeOptions


def member(name: str, address: str) -> Member:
    return Member(name, address, "", "host", 1, name)


def test_a_routed_member_is_reached_at_its_route() -> None:
    routes = Routes.parse(["b=tunnel:14711", "elsewhere=10.0.0.1:1"])
    members = {"a": member("a", "10.1.0.1:7000"), "b": member("b", "10.1.0.2:7000")}
    assert routes.applied(members) == {"a": member("a", "10.1.0.1:7000"), "b": member("b", "tunnel:14711")}
    assert members["b"].address == "10.1.0.2:7000"


def test_without_routes_everybody_is_where_he_says() -> None:
    members = {"a": member("a", "10.1.0.1:7000")}
    assert Routes().applied(members) == members


@pytest.mark.parametrize(
    "text", ["b", "b=", "b=host", "b=host:", "b=:7000", "=host:1", "b=host:0", "b=host:65536", "b=h:x"]
)
def test_what_is_no_route_is_refused(text: str) -> None:
    with pytest.raises(UnbrokenError, match="is not a route; write NODE=HOST:PORT"):
        Routes.parse([text])


def test_two_ways_to_one_node_are_refused() -> None:
    assert Routes.parse(["b=h:1", "b=h:1"]) == Routes({"b": "h:1"})
    with pytest.raises(UnbrokenError, match="two routes to b, h:1 and h:2"):
        Routes.parse(["b=h:1", "b=h:2"])


def test_one_text_has_spaces_between_its_routes() -> None:
    assert Routes.parse("b=h:1 c=h:2") == Routes.parse(["b=h:1", "c=h:2"])


def test_an_address_may_be_one_of_ipv6() -> None:
    assert Routes.parse(["b=[2001:db8::1]:7000"]).to == {"b": "[2001:db8::1]:7000"}


@dataclass
class Started:
    options: NodeOptions | None = None

    def __call__(self, options: NodeOptions) -> None:
        self.options = options


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    recorder = Started()
    monkeypatch.setattr(node_main, "run_node", recorder)
    monkeypatch.setenv("UNBROKEN_TOKEN", TOKEN)
    monkeypatch.delenv("UNBROKEN_ROUTES", raising=False)
    yield recorder


@pytest.mark.parametrize("by_environment", [False, True])
def test_routes_are_given_on_the_command_line_or_in_the_environment(
    started: Started, tmp_path: Path, by_environment: bool
) -> None:
    command = ["node", "--flow", str(tmp_path / "flow.py"), "--zookeeper", "zk:2181"]
    words = [] if by_environment else ["--route", "b=h:1", "--route", "c=h:2"]
    environment = {"UNBROKEN_ROUTES": "b=h:1 c=h:2"} if by_environment else {}
    result = CliRunner().invoke(cli, [*command, *words], env=environment)
    assert result.exit_code == 0, result.output
    assert started.options is not None
    assert started.options.routes == Routes({"b": "h:1", "c": "h:2"})
