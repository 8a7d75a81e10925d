"""A node process that is used again: Python, Spark and all imports stay warm from one run to the next.

Started by a pool as ``unbroken.testing.warm.host SOCKET NAME RECIPE``, below `injection.conditions`. It starts its
Spark session, says that it is idle, and then does one order after the other: run a node of this flow, or compute what
a run had to give. A node runs by the same `run_node` as in production, in the main thread; only the session is not its
own. Between two orders everything that the last one has left is cleared away, and a process that cannot do so ends: the
pool has others.

The process ends with its owner: it is started by `unbroken.local.processes.spawn`, and the end of the socket is the
end of its work.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unbroken.coordination.routes import Routes
from unbroken.errors import UnbrokenError
from unbroken.node.main import NodeOptions, run_node
from unbroken.security.secret import mask_logs
from unbroken.spark.session import start_session
from unbroken.testing.injection.condition_files import ConditionsFile
from unbroken.testing.injection.conditions import IMPOSED
from unbroken.testing.warm.orders import (
    BUSY,
    ENDS,
    IDLE,
    RECIPE,
    NodeTask,
    ProcessCalled,
    ProcessLine,
    ProcessOrder,
    ProcessState,
    Recipe,
    StopNode,
)
from unbroken.testing.warm.surroundings import ProcessSurroundings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
log = logging.getLogger(__name__)

MOST_ORDERS = 40
"""Orders after which a process ends and is replaced: what each leaves behind in Spark's JVM is little, not nothing."""

CLEAR_DEADLINE_S = 15.0
"""How long what a run has left may take to end; a query that is amid a micro-batch takes seconds."""

SERVER_ENDS = "shutdown"
"""The thread in which the server of a node waits for its peers to close their links; see `NodeServer.close`."""

CHATTY = ("kazoo", "py4j")
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Host:
    """One process: its session, its line to the pool, and the node that runs at this moment, if one does."""

    def __init__(self, line: ProcessLine, name: str, recipe: Recipe) -> None:
        self._line = line
        self._name = name
        self._recipe = recipe
        self._orders: queue.Queue[ProcessOrder | None] = queue.Queue(4)
        self._lock = threading.Lock()
        self._stop_node: Callable[[], None] | None = None
        self._stopped = False
        self._surroundings: ProcessSurroundings | None = None

    def serve(self) -> None:
        """Do orders until the pool is gone or has enough of this process."""
        started = time.monotonic()
        session = start_session(f"unbroken-testing-{self._name}", self._recipe.settings())
        self._surroundings = ProcessSurroundings(session)
        self._line.send(ProcessState(IDLE, took_s=time.monotonic() - started))
        threading.Thread(target=self._listen, name="orders", daemon=True).start()
        for _ in range(MOST_ORDERS):
            order = self._orders.get()
            if order is None:
                break
            self._do(order, session)
        session.stop()

    def _listen(self) -> None:
        """Take what the pool says; ends the process with it."""
        while (said := self._line.receive()) is not None:
            if isinstance(said, StopNode):
                with self._lock:
                    self._stopped = True
                    if self._stop_node is not None:
                        self._stop_node()
            elif isinstance(said, ProcessOrder):
                with self._lock:
                    self._stopped = False
                self._orders.put(said)
        self._orders.put(None)
        with self._lock:
            if self._stop_node is not None:
                self._stop_node()

    def _do(self, order: ProcessOrder, session: SparkSession) -> None:
        self._line.send(ProcessState(BUSY))
        assert self._surroundings is not None
        failure = ""
        handler = _log_to(Path(order.log))
        try:
            with self._surroundings.of(order):
                if isinstance(order.task, NodeTask):
                    self._run_node(order.task, session)
                else:
                    from unbroken.testing.reference import compute  # Most processes are never asked for it.

                    compute(Path(order.task.root), Path(order.task.out), session)
        except UnbrokenError as error:
            failure = str(error)
        except Exception as error:
            log.exception("%s failed", type(order.task).__name__)
            failure = f"{type(error).__name__}: {error}"
        finally:
            with self._lock:
                self._stop_node = None
        if failure:
            log.error("%s", failure)
        left = clear(session, CLEAR_DEADLINE_S)
        logging.getLogger().removeHandler(handler)
        handler.close()
        if left:
            self._line.send(ProcessState(ENDS, failure))
            # Python would wait for what does not end.
            log.warning("this process ends: %s", left)
            logging.shutdown()
            os._exit(0)
        self._line.send(ProcessState(IDLE, failure))

    def _run_node(self, task: NodeTask, session: SparkSession) -> None:
        node_options = NodeOptions(
            name=task.name,
            flow_file=Path(task.flow),
            zookeeper=task.zookeeper,
            directory=Path(task.directory),
            token=task.token,
            port=task.port,
            nodes=task.nodes,
            standby=task.standby,
            routes=Routes(task.routes),
        )
        IMPOSED.follow(ConditionsFile(Path(task.conditions)))
        try:
            run_node(node_options, session, self._begun)
        finally:
            IMPOSED.follow(None)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)

    def _begun(self, stop: Callable[[], None]) -> None:
        with self._lock:
            self._stop_node = stop
            if self._stopped:
                stop()


def clear(session: SparkSession, deadline_s: float) -> str:
    """End what a run has left; what could not be ended, empty if nothing is left."""
    end = time.monotonic() + deadline_s
    while queries := session.streams.active:
        for query in queries:
            try:
                query.stop()
            except Exception as error:
                log.info("a query did not stop cleanly: %s", error)
        if time.monotonic() > end:
            return f"{len(queries)} queries do not end"
        time.sleep(0.05)
    for thread in threading.enumerate():
        if thread.name == SERVER_ENDS:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                return "a peer has not closed its link"
    jvm: Any = session._jvm
    states = jvm.org.apache.spark.sql.execution.streaming.state
    # State stores stay loaded for the next micro-batch of their query, which will never come.
    getattr(getattr(states, "StateStore$"), "MODULE$").stop()
    return ""


def _log_to(path: Path) -> logging.Handler:
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter(FORMAT))
    logging.getLogger().addHandler(handler)
    return handler


def main(address: str, name: str, recipe: str) -> None:
    logging.basicConfig(level=os.environ.get("UNBROKEN_LOG", "INFO"), format=FORMAT)
    mask_logs()
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address)
    line = ProcessLine(connection)
    line.send(ProcessCalled(name))
    Host(line, name, RECIPE.decode(recipe.encode())).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
