"""What a node asks of a Spark master, and what it refuses before anything is started."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unbroken.errors import UnbrokenError
from unbroken.flow.settings import Settings
from unbroken.security.secret import Secret
from unbroken.spark.executors import Sight, look, trouble_with
from unbroken.spark.master import (
    PYTHON_PATH,
    SECRET_VARIABLE,
    MasterError,
    await_executor,
    await_master,
    is_local,
    refuse_hidden_driver,
    standalone_addresses,
)
from unbroken.spark.session import SMALL_JVM, THROUGHPUT_JVM, scratch_settings, session_settings
from unbroken.spark.spark_submit import DEPLOY_MODE, GATEWAY, chosen, submitted_settings

REMOTE = "spark://10.0.0.5:7077"
SUBMITTED = {
    "spark.master": REMOTE,
    "spark.app.name": "node.py",
    "spark.driver.memory": "3g",
    "spark.driver.port": "7078",
    "spark.sql.shuffle.partitions": "200",
    "spark.submit.deployMode": "client",
}


def test_a_local_master_is_told_from_others() -> None:
    assert is_local(None) and is_local("local") and is_local("local[2]") and is_local("local[*]")
    assert not is_local(REMOTE) and not is_local("yarn") and not is_local("k8s://https://10.0.0.1:6443")


def test_addresses_of_standalone_masters() -> None:
    assert standalone_addresses("spark://one:7077,two:7078") == [("one", 7077), ("two", 7078)]
    assert standalone_addresses("spark://[::1]:7077") == [("::1", 7077)]
    assert standalone_addresses("yarn") == []


@pytest.mark.parametrize("master", ["spark://", "spark://one", "spark://one:", "spark://:7077", "spark://a:1,b"])
def test_a_master_without_host_or_port_is_refused(master: str) -> None:
    with pytest.raises(MasterError, match="HOST:PORT"):
        standalone_addresses(master)


@pytest.mark.parametrize("master", [REMOTE, "yarn", "k8s://https://10.0.0.1:6443", "spark://127.0.0.1:1,10.0.0.5:2"])
def test_executors_elsewhere_need_an_address_that_they_reach(master: str) -> None:
    with pytest.raises(MasterError, match="--host"):
        refuse_hidden_driver(master, "127.0.0.1")
    refuse_hidden_driver(master, "10.0.0.7")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_all_on_one_machine_may_use_its_loopback(host: str) -> None:
    refuse_hidden_driver("spark://127.0.0.1:7077", host)


def test_a_master_that_listens_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        await_master(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}", deadline_s=0)
    await_master("yarn", deadline_s=0)


def test_a_master_that_does_not_listen_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(MasterError, match=f"no Spark master answers at spark://127.0.0.1:{port} .*--spark-master"):
        await_master(f"spark://127.0.0.1:{port}", deadline_s=0)


def session(conf: dict[str, str]) -> Any:
    context = SimpleNamespace(master=REMOTE, getConf=lambda: conf)
    return SimpleNamespace(sparkContext=context, version="4.3.0")


def test_an_executor_that_does_not_come_is_explained() -> None:
    with pytest.raises(MasterError, match=r"no executor within 0 s.* 1 core\(s\) and 2g of memory.*4\.3\.0"):
        await_executor(session({"spark.executor.memory": "2g"}), deadline_s=0, find=lambda _: frozenset())
    await_executor(session({}), deadline_s=0, find=lambda _: frozenset({"0"}))


# --- settings -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def cluster_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "a secret of the cluster")


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_a_local_spark_listens_on_the_loopback_interface_only(master: str) -> None:
    conf = session_settings(Settings(), master, "10.0.0.7", {})
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert conf["spark.authenticate"] == "true"


@pytest.mark.parametrize("master", [REMOTE, "yarn", "k8s://https://10.0.0.1:6443"])
def test_ports_that_executors_reach_are_authenticated_and_encrypted(master: str) -> None:
    conf = session_settings(Settings(), master, "10.0.0.7", {})
    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == "true"
    assert conf.get("spark.authenticate.secret") == ("a secret of the cluster" if master == REMOTE else None)


def test_a_standalone_cluster_without_a_known_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE)
    with pytest.raises(MasterError, match=r"secret of spark://.*Secret\.file.*'spark\.authenticate': 'false'"):
        session_settings(Settings(), REMOTE, "10.0.0.7", {})
    monkeypatch.setenv("CLUSTER", "it is a secret")
    known = Settings(spark={"spark.authenticate.secret": Secret.env("CLUSTER")})
    conf = session_settings(known, REMOTE, "10.0.0.7", {})
    assert conf["spark.authenticate"] == "true" and conf["spark.authenticate.secret"] == "it is a secret"
    trusted = session_settings(Settings(spark={"spark.authenticate": "false"}), REMOTE, "10.0.0.7", {})
    assert trusted["spark.authenticate"] == "false" and "spark.network.crypto.enabled" not in trusted
    submitted = {**SUBMITTED, "spark.authenticate.secret.file": "/run/secrets/spark"}
    assert session_settings(Settings(), REMOTE, "10.0.0.7", submitted)["spark.authenticate"] == "true"


def test_a_node_takes_no_more_of_a_cluster_than_it_has_slots() -> None:
    conf = session_settings(Settings(node_cores=3, node_memory="2g"), REMOTE, "10.0.0.7", {})
    assert conf["spark.cores.max"] == "3"
    assert conf["spark.executor.memory"] == "2g"
    assert conf["spark.executor.extraJavaOptions"] == SMALL_JVM
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "10.0.0.7"


def test_executors_keep_the_defaults_of_the_jvm_at_saturation() -> None:
    conf = session_settings(Settings(jvm="throughput"), REMOTE, "10.0.0.7", {})
    assert "spark.executor.extraJavaOptions" not in conf


def test_a_local_node_asks_for_no_executors() -> None:
    conf = session_settings(Settings(), "local[2]", "127.0.0.1", {})
    assert not {key for key in conf if key.startswith(("spark.executor.", "spark.cores", "spark.executorEnv"))}


def test_what_spark_needs_while_it_runs_is_in_the_directory_of_its_node(tmp_path: Path) -> None:
    scratch = tmp_path / "with a space"
    conf = scratch_settings(session_settings(Settings(), "local[2]", "127.0.0.1", {}), scratch)
    assert conf["spark.local.dir"] == str(scratch)
    assert conf["spark.driver.extraJavaOptions"] == f'"-Djava.io.tmpdir={scratch}" {SMALL_JVM}'


def test_users_say_where_spark_keeps_its_files_if_they_want_to(tmp_path: Path) -> None:
    settings = Settings(jvm="throughput", spark={"spark.local.dir": "/fast"})
    conf = scratch_settings(session_settings(settings, "local[2]", "127.0.0.1", {}), tmp_path)
    assert conf["spark.local.dir"] == "/fast"
    assert conf["spark.driver.extraJavaOptions"] == f'"-Djava.io.tmpdir={tmp_path}" {THROUGHPUT_JVM}'


def test_executors_find_modules_where_the_node_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"lib{os.pathsep}/opt/flows")
    conf = session_settings(Settings(), REMOTE, "10.0.0.7", {})
    assert conf[PYTHON_PATH] == f"{tmp_path / 'lib'}{os.pathsep}/opt/flows"
    given = {**SUBMITTED, PYTHON_PATH: "/opt/more"}
    assert session_settings(Settings(), REMOTE, "10.0.0.7", given)[PYTHON_PATH].endswith(f"{os.pathsep}/opt/more")


def test_spark_submit_decides_about_resources_and_the_flow_about_results() -> None:
    conf = session_settings(Settings(partitions=4), REMOTE, "10.0.0.7", SUBMITTED)
    assert conf["spark.driver.memory"] == "3g"
    assert conf["spark.driver.port"] == "7078"
    assert conf["spark.sql.shuffle.partitions"] == "4"
    assert "spark.driver.extraJavaOptions" not in conf, "the JVM runs already"
    assert "spark.app.name" not in conf


def test_the_file_of_the_flow_has_the_last_word() -> None:
    conf = session_settings(Settings(spark={"spark.driver.port": "9"}), REMOTE, "10.0.0.7", SUBMITTED)
    assert conf["spark.driver.port"] == "9"


def test_a_node_cannot_be_sent_into_the_cluster() -> None:
    with pytest.raises(UnbrokenError, match="--deploy-mode client"):
        chosen({DEPLOY_MODE: "cluster"})


def test_without_spark_submit_nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GATEWAY, raising=False)
    assert submitted_settings() == {}


# --- executors ------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "node" / "probe"
    path.mkdir(parents=True)
    (path / "asked").write_text("secret")
    return path


def seen(place: Path) -> Sight:
    return next(iter(look(str(place), [1])))


def test_an_executor_that_shares_the_directory_is_fit(place: Path) -> None:
    sight = seen(place)
    assert trouble_with(sight, sight.version, place, "secret", ["sums"]) is None


def test_an_executor_with_another_version_is_not(place: Path) -> None:
    trouble = trouble_with(seen(place), "9.9", place, "secret", [])
    assert trouble is not None and "this node 9.9" in trouble and "Install" in trouble


def test_an_executor_without_the_directory_can_do_stateless_work_only(place: Path, tmp_path: Path) -> None:
    sight = seen(tmp_path / "elsewhere")
    assert trouble_with(sight, sight.version, place, "secret", []) is None
    trouble = trouble_with(sight, sight.version, place, "secret", ["counts", "sums"])
    assert trouble is not None
    assert f"does not share {place.parent} with this node (No such file or directory)" in trouble
    assert "counts, sums" in trouble and "--dir" in trouble


def test_a_directory_of_the_same_name_is_not_the_same(place: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "asked").write_text("left there by somebody else")
    sight = seen(other)
    trouble = trouble_with(sight, sight.version, place, "secret", ["sums"])
    assert trouble is not None and "another directory has the same name there" in trouble


def test_an_executor_that_cannot_write_is_not_fit(place: Path) -> None:
    sight = Sight("there", 1, "3.12", "1", 0, "secret", "")
    trouble = trouble_with(sight, "1", place, "secret", ["sums"])
    assert trouble is not None and "does not share" in trouble


def test_an_executor_of_another_user_is_not_fit(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sight = seen(place)
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    trouble = trouble_with(sight, sight.version, place, "secret", ["sums"])
    assert trouble is not None and f"as user {mine}, and this node is user {mine + 1}" in trouble
