"""A real Kafka server for tests and demos: one broker on the loopback interface, without ZooKeeper (KRaft).

Its jars are fetched once with Maven into a cache directory outside the tree. As a program::

    python broker.py fetch    # the jars, if they are not there (make kafka)
    python broker.py serve    # a broker until Ctrl-C, for trying things out
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType

from unbroken.local.processes import OwnedProcess, spawn, tail
from unbroken.spark.java import find_java

POM = Path(__file__).with_name("pom.xml")

FETCH_DEADLINE_S = 600.0
"""About 45 MB; the bound is for a slow line."""

START_DEADLINE_S = 60.0
"""A start takes about 3 s; the bound is for a machine that does a lot else."""

JVM_OPTIONS = (
    "-Xmx256m",
    "-Xms64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)


class BrokerError(Exception):
    """Kafka could not be fetched or started."""


def version() -> str:
    """The version of Kafka that the pom names."""
    found = re.search(r"<kafka\.version>([^<]+)<", POM.read_text())
    if found is None:
        raise BrokerError(f"{POM} names no kafka.version")
    return found.group(1)


def jar_directory() -> Path:
    """Where the jars of this version are, or would be."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "unbroken" / f"kafka-{version()}"


def fetch() -> Path:
    """The directory with the jars; they are fetched with Maven if they are not there."""
    target = jar_directory()
    if target.is_dir():
        return target
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerError(
            f"Kafka {version()} is not in {target}, and there is no Maven (mvn) on the PATH to fetch it. Install "
            "Maven, or set UNBROKEN_KAFKA=host:port to use a server that runs"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # Moved into place whole, so that an interrupted fetch leaves nothing that looks complete.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".kafka-") as temporary:
        jars = Path(temporary) / "jars"
        command = [maven, "-B", "-q", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_DEADLINE_S)
        if done.returncode != 0:
            raise BrokerError(f"Maven could not fetch Kafka {version()}:\n{done.stdout}{done.stderr}")
        try:
            jars.rename(target)
        except OSError:
            if not target.is_dir():  # Else another process was first.
                raise
    return target


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Broker:
    """One Kafka broker that is its own controller, owned by this process.

    ``start`` returns once clients can be served. Port and data stay the same for this object, so ``kill`` and
    ``start`` are a crash and a restart. ``close`` ends it and removes its data. ``settings`` are added to the server's
    properties.
    """

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._settings = settings or {}
        self._directory = Path(tempfile.mkdtemp(prefix="unbroken-kafka-"))
        self.log_file = self._directory / "broker.log"
        self._port, self._controller_port = free_ports(2)
        self._process: OwnedProcess | None = None
        self._class_path = ""

    @property
    def servers(self) -> str:
        """What clients connect to."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.alive() else None

    def start(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Start the broker, or start it again on its port and data; does nothing if it runs."""
        if self.pid is not None:
            return
        end = time.monotonic() + deadline_s
        self.stop()
        if not self._class_path:
            self._class_path = f"{fetch()}/*"
            self._format()
        self._process = spawn(self._command("kafka.Kafka", str(self._properties)), log_file=self.log_file)
        while not self._serves():
            if not self._process.alive() or time.monotonic() >= end:
                code = self._process.returncode
                self.stop(0.0)
                what = "did not serve in time" if code is None else f"ended with code {code}"
                raise BrokerError(f"Kafka on {self.servers} {what}. The end of its log:\n{tail(self.log_file)}")
            time.sleep(0.05)

    def stop(self, deadline_s: float = 10.0) -> None:
        """End the broker in order; its data stay."""
        process, self._process = self._process, None
        if process is not None:
            process.stop(deadline_s)

    def kill(self) -> None:
        """End the broker as a crash would (SIGKILL); its data stay."""
        if self._process is not None:
            self._process.kill9()
            self.stop(0.0)

    def restart(self) -> None:
        """End the broker in order and start it on the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the broker and remove its data."""
        self.stop(0.0)
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Broker:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _properties(self) -> Path:
        return self._directory / "server.properties"

    def _command(self, *arguments: str) -> list[str]:
        return [str(find_java().executable), *JVM_OPTIONS, "-cp", self._class_path, *arguments]

    def _format(self) -> None:
        """Write the settings, and the mark without which a server refuses its data directory."""
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self._directory / "data"),
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            # One broker has to do for what is replicated three times by default, with few partitions to start fast.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "2",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # Records with times of long ago stay, unless a topic says otherwise.
            "log.retention.ms": "-1",
            # Looked at every few minutes by default, which no test is long enough to see.
            "log.retention.check.interval.ms": "500",
            "log.cleaner.backoff.ms": "200",
            "log.cleaner.dedupe.buffer.size": "4194304",
            "log.segment.delete.delay.ms": "100",
            # A killed broker is let in again as soon as it asks; its old session is not waited for.
            "broker.session.timeout.ms": "1000",
            "broker.heartbeat.interval.ms": "200",
            "controlled.shutdown.enable": "false",
            "num.network.threads": "2",
            "num.io.threads": "2",
            **self._settings,
        }
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        cluster_id = uuid.uuid4().hex[:22]
        formatted = subprocess.run(
            self._command(
                "kafka.tools.StorageTool", "format", "--cluster-id", cluster_id, "--config", str(self._properties)
            ),
            capture_output=True,
            text=True,
            timeout=START_DEADLINE_S,
        )
        if formatted.returncode != 0:
            raise BrokerError(f"Kafka's storage could not be formatted:\n{formatted.stdout}{formatted.stderr}")

    def _serves(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            # Asked first because a client that finds nobody writes about it.
            socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
            return bool(AdminClient({"bootstrap.servers": self.servers}).list_topics(timeout=2.0).brokers)
        except (OSError, KafkaException):
            return False


def main(arguments: list[str]) -> int:
    if arguments == ["fetch"]:
        print(fetch())
        return 0
    if arguments == ["serve"]:
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        with Broker() as broker:
            print(f"Kafka {version()} serves on {broker.servers}; Ctrl-C ends it and removes its data.", flush=True)
            ended.wait()
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokerError as problem:
        sys.exit(str(problem))
