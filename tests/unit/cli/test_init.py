"""`unbroken init`: a project that can be run as it is, and never overwrites anything."""

from __future__ import annotations

import ast
import json
import zipfile
from pathlib import Path

import pytest

from kit.places import ROOT
from unbroken.cli.starter import COMMON, OWN, SOURCES, name_for, project
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unit.cli.asking import ask, facts

every_source = pytest.mark.parametrize("source", SOURCES)


@every_source
def test_what_it_writes_is_a_flow_that_can_be_run(source: str, tmp_path: Path) -> None:
    told = ask("init", str(tmp_path / "shop"), "--source", source)
    assert told.exit_code == 0, told.stderr
    written = {str(path.relative_to(tmp_path / "shop")) for path in (tmp_path / "shop").rglob("*") if path.is_file()}
    assert written == {*COMMON, *OWN[source]}
    assert all(name in told.stdout for name in written) and "unbroken run flow.py" in told.stdout
    flow = load_flow(tmp_path / "shop" / "flow.py")
    topology = build_topology(flow)
    assert (flow.name, topology.sources, dict(topology.segments)) == ("shop", ("orders",), {"per_shop": 1})
    assert topology.replicas["per_shop"] == 2 <= flow.settings.nodes


@every_source
def test_its_python_is_formatted_and_speaks_of_its_own_files(source: str) -> None:
    texts = project("shop", source)
    for path, text in texts.items():
        if path.endswith(".py"):
            ast.parse(text)
            assert max(map(len, text.splitlines())) <= 120
        assert "$" not in text and text.endswith("\n")
    assert "unbroken check flow.py" in texts["README.md"] and ".unbroken/shop" in texts["README.md"]
    assert ".unbroken/" in texts[".gitignore"]
    assert "run_with_faults" in texts["test_flow.py"] and "Kill(" in texts["test_flow.py"]


def test_rows_of_the_files_project_fit_its_schema() -> None:
    rows = [json.loads(line) for line in project("shop", "files")["in/orders-1.json"].splitlines()]
    assert all(set(row) == {"shop", "amount"} for row in rows)


@pytest.mark.parametrize("taken", ["flow.py", "README.md", ".gitignore"])
def test_nothing_is_ever_overwritten(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).write_text("mine")
    told = ask("init", str(tmp_path))
    assert told.exit_code == 2 and taken in told.stderr
    assert [path.name for path in tmp_path.iterdir()] == [taken] and (tmp_path / taken).read_text() == "mine"


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "shop").write_text("mine")
    assert ask("init", str(tmp_path / "shop")).exit_code == 2


def test_the_name_is_that_of_the_directory_unless_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "my shop, 2"
    place.mkdir()
    assert name_for(place) == "my-shop-2" and name_for(tmp_path / "2nd") == "orders"
    monkeypatch.chdir(place)
    assert facts("init")["flow"] == "my-shop-2"
    assert 'Dataflow("my-shop-2"' in (place / "flow.py").read_text()
    found = facts("init", str(tmp_path / "b"), "--name", "sales", "--source", "push")
    assert found["flow"] == "sales" and str(tmp_path / "b" / "push_orders.py") in found["files"]
    refused = ask("init", str(tmp_path / "c"), "--name", "2 much")
    assert refused.exit_code == 2 and "no name for a flow" in refused.stderr and not (tmp_path / "c").exists()


def test_the_wheel_has_the_templates(tmp_path: Path) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="needs the build tool of the project")
    builder = wheel.WheelBuilder(str(ROOT))
    with zipfile.ZipFile(next(builder.build(directory=str(tmp_path), versions=["standard"]))) as archive:
        names = set(archive.namelist())
    templates = {template for made in (COMMON, *OWN.values()) for template in made.values()}
    assert {f"unbroken/cli/starter/templates/{template}.txt" for template in templates} <= names


def test_spark_takes_it(tmp_path: Path, spark: object) -> None:
    """What `unbroken check` does with a session of its own."""
    from unbroken.spark.analysis.analysis import analyse

    ask("init", str(tmp_path / "shop"))
    flow = load_flow(tmp_path / "shop" / "flow.py")
    found = analyse(flow, ("per_shop",), spark)  # type: ignore[arg-type]
    assert found.schemas["per_shop"].fieldNames() == ["shop", "orders", "amount"]
