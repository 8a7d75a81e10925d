"""How Flink is set up and read; that it runs is only tried where it has been installed before."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.peers.flink import install
from unbroken_lab.experiments.peers.flink.cluster import Output, TunedFlink
from unbroken_lab.experiments.peers.flink.install import find_flink, install_flink, peers_directory
from unbroken_lab.experiments.peers.flink.settings import TUNED, Ports, configuration, write_configuration
from unbroken_lab.experiments.peers.schedule import PeerSchedule, run_system


def test_results_are_read_as_the_output_grows(tmp_path: Path) -> None:
    path = tmp_path / "out"
    output = Output(path)
    assert output.read().shape == (0, 3)
    path.write_bytes(b"WARNING: a warning\n2> +I[17, 1, 400]\n1> -U[3, 4, 5]\n1> +U[3, 5, 5]\n2> +U[17, 2")
    assert output.read().tolist() == [[17, 1, 400], [3, 5, 5]]
    assert output.read().tolist() == []
    with path.open("ab") as file:
        file.write(b", 900]\n")
    assert output.read().tolist() == [[17, 2, 900]]


def test_the_tuned_configuration_differs_only_in_what_is_tuned(tmp_path: Path) -> None:
    ports = Ports(1234, 4321)
    plain, tuned = (configuration(tmp_path, ports, tuning) for tuning in ({}, TUNED))
    assert {key for key, value in tuned.items() if plain.get(key) != value} == set(TUNED)
    assert not any(key.startswith(("heartbeat", "restart")) for key in plain)
    write_configuration(tmp_path / "conf", tuned)
    written = yaml.safe_load((tmp_path / "conf" / "config.yaml").read_text())
    assert written == tuned


def test_the_place_of_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNBROKEN_PEERS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert peers_directory() == tmp_path / "unbroken" / "peers"
    assert find_flink() is None
    home = tmp_path / "unbroken" / "peers" / "flink-9.9" / "lib" / "python3.11" / "site-packages" / "pyflink"
    (home / "lib").mkdir(parents=True)
    assert find_flink("9.9") is None
    (home / "lib" / "flink-dist-9.9.jar").touch()
    found = find_flink("9.9")
    assert found is not None
    assert found.home == home


def test_a_failed_installation_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNBROKEN_PEERS", str(tmp_path))

    def refuse(command: list[str], deadline_s: float, failed: str) -> None:
        raise UnbrokenError(f"{failed}: no way to PyPI")

    monkeypatch.setattr(install, "_run", refuse)
    said: list[str] = []
    with pytest.raises(UnbrokenError, match="no way to PyPI"):
        install_flink(said.append)
    assert str(tmp_path) in said[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(find_flink() is None, reason="Flink is not installed; `unbroken bench peers` installs it")
def test_flink_counts_every_event_once_through_a_kill() -> None:
    run = run_system(TunedFlink, 500, PeerSchedule.of(30), lambda _: None)
    assert (run.observation.lost(), run.observation.duplicated(), run.observation.wrong()) == (0, 0, 0)
    assert run.killed.startswith("tm-")
    assert run.cpu_s > 0
