"""A ZooKeeper server for deployments that do not bring one, run from the jars of the pyspark package.

It is a single server: while it is down the data path goes on and only membership changes wait, so one server
that is restarted on its data is enough on one machine. A deployment over several machines that wants more
names its own ensemble instead.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from unbroken.errors import UnbrokenError
from unbroken.local.processes import OwnedProcess, ProcessError, spawn, tail
from unbroken.security.private_files import make_private
from unbroken.spark.java import find_java

TICK_MS = 500
"""ZooKeeper's unit of time. Sessions are at least two ticks long, and lost nodes are seen in seconds."""

SHORTEST_SESSION_MS = 2 * TICK_MS
LONGEST_SESSION_MS = 120_000
"""As long as the setting ``session_timeout`` may ask for; ZooKeeper's own default would be 20 ticks."""

MOST_CONNECTIONS = 500
"""Per client address. Everything connects from one address here; the default of 60 is for remote clients."""

LOG_BLOCK_KB = 1024
"""Transaction logs grow by this much. The default of 64 MB is for busy ensembles with a disk of their own."""

JARS = (
    "zookeeper-3",
    "zookeeper-jute-",
    "slf4j-api-",
    "log4j-slf4j2-impl-",
    "log4j-api-",
    "log4j-core-",
    "metrics-core-",
    "snappy-java-",
    "commons-cli-",
    "commons-io-",
    "netty-buffer-",
    "netty-codec-",
    "netty-common-",
    "netty-handler-",
    "netty-resolver-",
    "netty-transport-",
)
"""How the names of the jars begin that the server needs out of the few hundred that Spark brings."""

ANSWER_DEADLINE_S = 1.0
POLL_S = 0.05
PORT_ATTEMPTS = 3
"""A free port may be taken before the server has it; a third collision in a row is no coincidence."""


class ZooKeeperError(UnbrokenError):
    """The embedded ZooKeeper server could not be started."""


def _class_path() -> str:
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    found = sorted(jar for jar in jars.glob("*.jar") if jar.name.startswith(JARS))
    if not any(jar.name.startswith("zookeeper-3") for jar in found):
        raise ZooKeeperError(
            f"There is no ZooKeeper 3 among the jars of pyspark in {jars}.\n"
            "    -> reinstall pyspark 4.3, or start nodes with `unbroken node --zookeeper` and an ensemble of your own"
        )
    return ":".join(str(jar) for jar in found)


def _listen_probe(host: str, port: int) -> int:
    """Bind and release a port; 0 picks a free one. Raises OSError if somebody listens there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def serves(host: str, port: int, deadline_s: float = ANSWER_DEADLINE_S) -> bool:
    """Whether a ZooKeeper at this address takes requests, by its own word."""
    try:
        with socket.create_connection((host, port), timeout=deadline_s) as connection:
            connection.settimeout(deadline_s)
            connection.sendall(b"srvr")
            answer = b""
            while piece := connection.recv(4096):
                answer += piece
    except OSError:
        return False
    return b"Mode:" in answer


KILL_DEADLINE_S = 10.0
"""A killed process is gone at once, and its guardian notices within a moment."""


class EmbeddedZooKeeper:
    """One ZooKeeper server, owned by this process, bound to the loopback interface.

    ``start`` returns once the server takes requests. Data stay in ``data_dir``: a server started on the same
    directory has all that was acknowledged, also after kill -9. The port is picked at the first start if none
    is given, and stays the same for this object, so that clients find the server again after a restart.
    """

    def __init__(self, data_dir: Path, log_file: Path, host: str = "127.0.0.1", port: int | None = None) -> None:
        self.data_dir = data_dir.absolute()
        self.log_file = log_file.absolute()
        self.host = host
        self._fixed_port = port
        self._process: OwnedProcess | None = None

    @property
    def port(self) -> int:
        if self._fixed_port is None:
            raise ZooKeeperError("The embedded ZooKeeper has no port yet. -> call start() first")
        return self._fixed_port

    @property
    def address(self) -> str:
        """What clients connect to, as host:port."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The id of the server process while it runs."""
        return self._process.pid if self._process is not None and self._process.alive() else None

    def alive(self) -> bool:
        return self.pid is not None

    def start(self, deadline_s: float = 30.0) -> None:
        """Start the server and wait until it takes requests; does nothing if it runs."""
        if self.alive():
            return
        end = time.monotonic() + deadline_s
        if self._process is not None:
            # What is left of a killed server has to be gone before another one opens its files.
            self._process.stop(0.0)
            self._process = None
        if self._fixed_port is not None:
            self._check_port(self._fixed_port)
            self._start_on(self._fixed_port, end)
            return
        for attempt in range(1, PORT_ATTEMPTS + 1):
            port = _listen_probe(self.host, 0)
            try:
                self._start_on(port, end)
            except ZooKeeperError:
                if attempt == PORT_ATTEMPTS or "Address already in use" not in tail(self.log_file):
                    raise
            else:
                self._fixed_port = port
                return

    def stop(self, deadline_s: float = 5.0) -> None:
        """End the server; its data stay."""
        process, self._process = self._process, None
        if process is not None:
            process.stop(deadline_s)

    def kill9(self) -> None:
        """Kill the server as a fault would, and return when it is gone: `start` starts another one from then on."""
        if self._process is not None:
            self._process.kill9()
            self._process.wait(KILL_DEADLINE_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _check_port(self, port: int) -> None:
        try:
            _listen_probe(self.host, port)
        except OSError as error:
            raise ZooKeeperError(
                f"The embedded ZooKeeper cannot listen on {self.host}:{port}: {error}.\n"
                "    -> end the process that uses this port, or leave the port out to have a free one picked"
            ) from error

    def _start_on(self, port: int, end: float) -> None:
        process = self._spawn(port)
        while process.alive() and time.monotonic() < end:
            if serves(self.host, port) and process.alive():
                self._process = process
                return
            time.sleep(POLL_S)
        code = process.returncode
        process.stop(0.0)
        what = "did not take requests in time" if code is None else f"ended with code {code}"
        raise ZooKeeperError(
            f"The embedded ZooKeeper on {self.host}:{port} {what}. The end of {self.log_file}:\n"
            f"{tail(self.log_file)}\n"
            f"    -> if its data are damaged, remove {self.data_dir}; else give it more time or memory"
        )

    def _spawn(self, port: int) -> OwnedProcess:
        try:
            return spawn(self._command(self._write_config(port)), log_file=self.log_file, cwd=self.data_dir)
        except (ProcessError, OSError) as error:
            raise ZooKeeperError(f"The embedded ZooKeeper could not be started: {error}") from error

    def _command(self, config: Path) -> list[str]:
        return [
            str(find_java().executable),
            "-Xmx128m",
            "-Xms32m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            # An out-of-memory server that stumbles on is worse than one that is restarted.
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            "-Dorg.apache.logging.log4j.level=WARN",
            f"-Dzookeeper.preAllocSize={LOG_BLOCK_KB}",
            "-cp",
            _class_path(),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(config),
        ]

    def _write_config(self, port: int) -> Path:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        make_private(self.data_dir / "data")
        settings = {
            "dataDir": self.data_dir / "data",
            "clientPort": port,
            "clientPortAddress": self.host,
            "tickTime": TICK_MS,
            "minSessionTimeout": SHORTEST_SESSION_MS,
            "maxSessionTimeout": LONGEST_SESSION_MS,
            "maxClientCnxns": MOST_CONNECTIONS,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,ruok,mntr",
            "autopurge.snapRetainCount": 3,
            "autopurge.purgeInterval": 1,
        }
        config = self.data_dir / "zoo.cfg"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return config
