"""A Spark master that is not the node's own: what it is asked for, and how to tell whether it can give it.

By default a node computes in its own process, with the master ``local``. With another master its tasks run in executors
that the master's workers start, on any of their machines; the driver, the units and the checkpoints stay with the node.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from unbroken.errors import UnbrokenError
from unbroken.flow.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STANDALONE = "spark://"

MASTER_DEADLINE_S = 60.0
"""How long a master is waited for that does not answer: machines are often started all at once."""

EXECUTOR_DEADLINE_S = 180.0
"""How long the first executor is waited for. Starting one takes seconds; a cluster may have to be given machines."""

ANSWER_DEADLINE_S = 5.0
LOOK_S = 0.2

PYTHON_PATH = "spark.executorEnv.PYTHONPATH"

AUTHENTICATE = "spark.authenticate"
SECRETS = ("spark.authenticate.secret", "spark.authenticate.secret.file", "spark.authenticate.secret.driver.file")
SECRET_VARIABLE = "_SPARK_AUTH_SECRET"
"""Where Spark itself looks for the secret of a standalone cluster."""


class MasterError(UnbrokenError):
    """A Spark master cannot be used by this node."""


def is_local(master: str | None) -> bool:
    """Whether tasks run in the node's own process."""
    return master is None or master.startswith("local")


def executor_settings(settings: Settings, jvm_options: str) -> dict[str, str]:
    """What executors need beside the settings of every node."""
    conf = {
        # Without it a standalone master gives an application all its cores, and the next node none.
        "spark.cores.max": str(settings.node_cores),
        "spark.executor.memory": settings.node_memory,
    }
    return {**conf, "spark.executor.extraJavaOptions": jvm_options} if jvm_options else conf


def protection(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Settings without which the driver's ports would answer anyone who reaches them.

    A local Spark, YARN and Kubernetes make a secret for each application. A standalone cluster has one of its own, and
    the driver has to know it. Nothing is changed where ``spark.authenticate`` is set already.
    """
    if AUTHENTICATE in conf:
        return {}
    secret = {}
    if master.startswith(STANDALONE) and not any(name in conf for name in SECRETS):
        # A driver, unlike the daemons, does not look into its environment.
        secret = {SECRETS[0]: os.environ.get(SECRET_VARIABLE, "")}
    if not all(secret.values()):
        raise MasterError(
            f"the secret of {master} is not known, and without it anyone who reaches this node's Spark ports could use "
            f"them. Give the cluster a secret ({AUTHENTICATE}=true, spark.authenticate.secret) and set it here with "
            f"spark={{'spark.authenticate.secret': Secret.file('/path')}} or {SECRET_VARIABLE}; in a network that you "
            f"trust, set spark={{'{AUTHENTICATE}': 'false'}}."
        )
    encryption = {} if is_local(master) else {"spark.network.crypto.enabled": "true"}
    return {AUTHENTICATE: "true", **secret, **encryption}


def python_path(given: Mapping[str, str]) -> dict[str, str]:
    """Lets Python processes of Spark find what this process finds, if it is there at the same path."""
    mine = [os.path.abspath(part) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    parts = [*mine, *filter(None, [given.get(PYTHON_PATH)])]
    return {PYTHON_PATH: os.pathsep.join(parts)} if parts else {}


def refuse_hidden_driver(master: str, host: str) -> None:
    """Refuse an address of the node that executors on other machines cannot reach."""
    if not is_loopback(host):
        return
    hosts = [place for place, _ in standalone_addresses(master)]
    if hosts and all(is_loopback(place) for place in hosts):
        return
    raise MasterError(
        f"the executors of {master} cannot reach this node at {host}: they call the driver back and ask it for units. "
        "Give an address of this machine that they reach with --host."
    )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def standalone_addresses(master: str) -> list[tuple[str, int]]:
    """Hosts and ports of standalone masters (``spark://one:7077,two:7077``); none for other kinds of master."""
    if not master.startswith(STANDALONE):
        return []
    out: list[tuple[str, int]] = []
    for address in master.removeprefix(STANDALONE).split(","):
        host, colon, port = address.rpartition(":")
        if not colon or not host or not port.isdigit():
            raise MasterError(f"{master!r} is not a Spark master; write spark://HOST:PORT")
        out.append((host.strip("[]"), int(port)))
    return out


def await_master(master: str, deadline_s: float = MASTER_DEADLINE_S) -> None:
    """Wait until a standalone master listens. Spark itself would try for a minute, too, and say less about it.

    Other kinds of master have clients of their own, which say what is wrong.
    """
    addresses = standalone_addresses(master)
    end = time.monotonic() + deadline_s
    while addresses:
        failures = [failure for failure in map(_cannot_connect, addresses) if failure]
        if len(failures) < len(addresses):
            return
        if time.monotonic() > end:
            raise MasterError(
                f"no Spark master answers at {master} ({failures[0]}). Start it, or correct --spark-master; without "
                "that option the node computes on its own cores."
            )
        time.sleep(LOOK_S)


def _cannot_connect(address: tuple[str, int]) -> str:
    try:
        socket.create_connection(address, ANSWER_DEADLINE_S).close()
    except OSError as error:
        return str(error)
    return ""


def executor_ids(session: SparkSession) -> frozenset[str]:
    """The executors that have registered with this session's driver."""
    text = str(session.sparkContext._jsc.sc().getExecutorIds().mkString(","))
    return frozenset(part for part in text.split(",") if part)


def await_executor(
    session: SparkSession,
    deadline_s: float = EXECUTOR_DEADLINE_S,
    find: Callable[[SparkSession], frozenset[str]] = executor_ids,
) -> None:
    """Wait for the first executor: a task without one would wait for ever."""
    end = time.monotonic() + deadline_s
    while not find(session):
        if time.monotonic() > end:
            conf = session.sparkContext.getConf()
            wanted = f"{conf.get('spark.executor.cores', '1')} core(s) and {conf.get('spark.executor.memory', '1g')}"
            raise MasterError(
                f"{session.sparkContext.master} has given this node no executor within {deadline_s:.0f} s. An executor "
                f"needs a worker with {wanted} of memory to spare, the same version of Spark ({session.version}), and "
                "a way to this node's ports. The master's page shows what its workers have, and the logs of executors "
                "why they end."
            )
        time.sleep(LOOK_S)
