"""The systemd unit: what systemd says of it, and that it fits the node that it starts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.places import DEPLOY, METRICS_PORT, NODE_PORT, options_of, used_options
from unbroken.cli.shared import EXIT_FAILED, EXIT_REFUSED
from unbroken.node.membership.session import NAME_DEADLINE_S
from unbroken.node.service_manager import STUCK_S
from unbroken.spark.master import EXECUTOR_DEADLINE_S, MASTER_DEADLINE_S

UNIT = DEPLOY / "systemd" / "unbroken-node@.service"
DROP_IN = DEPLOY / "systemd" / "spark-submit.conf"
ENVIRONMENT = DEPLOY / "systemd" / "node.env"

Settings = dict[str, dict[str, list[str]]]


def parsed(path: Path) -> Settings:
    """Sections, names and values; a name may be there several times."""
    text = re.sub(r"\\\n\s*", "", path.read_text())
    out: Settings = {}
    section: dict[str, list[str]] = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = out.setdefault(match[1], {})
        elif line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals, line
            section.setdefault(name, []).append(value)
    return out


@pytest.fixture(scope="module")
def service() -> dict[str, list[str]]:
    return parsed(UNIT)["Service"]


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(min)?", text).groups()  # type: ignore[union-attr]
    return int(number) * (60 if unit else 1)


def command(service: dict[str, list[str]]) -> list[str]:
    return service["ExecStart"][0].split()


def test_the_options_of_the_command_exist(service: dict[str, list[str]]) -> None:
    program, name, *words = command(service)
    assert Path(program).name == "unbroken"
    used = used_options(words)
    assert set(used) <= options_of(name)
    assert len(used) == len(set(used))
    assert {"--flow", "--zookeeper", "--token-file", "--host", "--name", "--dir"} <= set(used)


def variables(path: Path, with_comments: bool) -> dict[str, str]:
    pattern = r"^#?([A-Z_]+)=(.*)$" if with_comments else r"^([A-Z_]+)=(.*)$"
    return dict(re.findall(pattern, path.read_text(), re.MULTILINE))


def test_every_variable_of_the_command_has_a_value(service: dict[str, list[str]]) -> None:
    preset = {text.partition("=")[0] for text in service["Environment"]}
    given = set(variables(ENVIRONMENT, with_comments=False))
    of_systemd = {"CREDENTIALS_DIRECTORY"}
    braced = set(re.findall(r"\$\{(\w+)\}", service["ExecStart"][0]))
    assert braced <= preset | given | of_systemd, "without a value it would be an empty word"
    assert not given & preset, "the example has to work as it is"
    # Without braces a variable becomes as many words as it has, and none if it has no value.
    assert re.findall(r"\$(\w+)", service["ExecStart"][0]) == ["MORE"]
    used = {*braced, "MORE", "JAVA_HOME"}
    assert set(variables(ENVIRONMENT, with_comments=True)) <= used, "the example speaks of nothing that is not used"


def test_examples_of_further_options_exist() -> None:
    lines = re.findall(r"^#MORE=(.*)$", ENVIRONMENT.read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        assert set(used_options(line.split())) <= options_of("node")


def test_ports_are_those_of_all_deployments(service: dict[str, list[str]]) -> None:
    preset = dict(text.split("=", 1) for text in service["Environment"])
    assert (preset["NODE_PORT"], preset["METRICS_PORT"]) == (str(NODE_PORT), str(METRICS_PORT))


def test_state_and_cache_are_places_that_systemd_makes(service: dict[str, list[str]]) -> None:
    preset = dict(text.split("=", 1) for text in service["Environment"])
    assert preset["STATE"] == "%S/unbroken/%i" and "unbroken/%i" in service["StateDirectory"][0].split()
    assert preset["XDG_CACHE_HOME"] == f"%C/{service['CacheDirectory'][0]}"
    assert service["LoadCredential"][0].startswith("token:"), "read as ${CREDENTIALS_DIRECTORY}/token"


def test_times_fit_how_a_node_starts_and_ends(service: dict[str, list[str]]) -> None:
    start = MASTER_DEADLINE_S + EXECUTOR_DEADLINE_S + NAME_DEADLINE_S
    assert seconds(service["TimeoutStartSec"][0]) > 1.5 * start
    assert seconds(service["WatchdogSec"][0]) >= STUCK_S
    assert service["KillMode"] == ["mixed"], "the node ends its queries before Spark goes"
    assert service["Type"] == ["notify"]


def test_what_cannot_get_better_is_not_tried_again(service: dict[str, list[str]]) -> None:
    assert service["Restart"] == ["always"]
    assert service["RestartPreventExitStatus"] == [str(EXIT_REFUSED)]
    assert str(EXIT_FAILED) not in service["RestartPreventExitStatus"]
    assert parsed(UNIT)["Unit"]["StartLimitIntervalSec"] == ["0"]


def test_java_may_compile(service: dict[str, list[str]]) -> None:
    assert "MemoryDenyWriteExecute" not in service


def test_spark_submit_is_told_the_same(service: dict[str, list[str]]) -> None:
    submitted = parsed(DROP_IN)["Service"]
    nothing, line = submitted["ExecStart"]
    assert nothing == "", "or there would be two commands"
    _, _, launcher, *options = line.split()
    _, _, *usual = command(service)
    assert options == usual
    assert (DEPLOY / "spark-submit" / Path(launcher).name).is_file()
    assert submitted["KillMode"] == ["control-group"] and submitted["NotifyAccess"] == ["all"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("dropped_in", [False, True])
def test_systemd_understands_the_unit(tmp_path: Path, dropped_in: bool) -> None:
    unit = tmp_path / "unbroken-node@clicks.service"
    unit.write_text(existing(UNIT))
    if dropped_in:
        (tmp_path / f"{unit.name}.d").mkdir()
        (tmp_path / f"{unit.name}.d" / DROP_IN.name).write_text(existing(DROP_IN))
    found = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    ours = [line for line in found.stderr.splitlines() if "unbroken" in line]
    assert not ours and found.returncode == 0, found.stderr


def existing(file: Path) -> str:
    """A unit that runs a program which is there."""
    return re.sub(r"(?m)^(ExecStart=)/opt/\S+", rf"\g<1>{sys.executable}", file.read_text())
