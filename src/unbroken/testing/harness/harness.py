"""The harness: a flow on processes of this machine is started, observed, struck by faults and waited for.

Everybody who runs a flow to see what it survives does so with it: `run_with_faults` for users' tests, fault campaigns,
the demonstration, benchmarks and system tests. They differ in the `Deployment` that they give it, in when faults come
(`FaultSchedule`, or `Harness.strike`), and in how results are judged.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, Self, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from unbroken.coordination.directory import Directory
from unbroken.coordination.documents import Member, connect, read_history, read_in_sync, root_of
from unbroken.errors import UnbrokenError
from unbroken.local.announcements import line
from unbroken.local.terminal import has_ended
from unbroken.observe.notices import text_of
from unbroken.observe.status.node import DivergedUnit, NodeStatus
from unbroken.observe.status.notices import reports_of
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.notices import Notice, Reported
from unbroken.testing.faults import EVERYTHING, DiskFull, Fault, Freeze, Kill
from unbroken.testing.harness.deployment import Deployment
from unbroken.testing.harness.results import CollectedResults
from unbroken.testing.harness.shortage import shortage_of
from unbroken.testing.harness.waiting import LOOK_S, until
from unbroken.testing.injection.executor import Executor, Struck, jvm_of
from unbroken.testing.targets import Roles

READY_S = 300.0
TEND_S = 0.5
ASK_S = 1.5
"""Nodes are asked this often how they are; each time costs them a few milliseconds."""

ANSWER_S = 10.0
END_S = 20.0
"""How long a fault may take to be ended before its time."""

Tell = Callable[[str], None]
D = TypeVar("D", bound=Deployment)


class Harness(Generic[D]):
    """A deployment, what is done to it, and what is seen of it.

    ``tell`` gets what happens, for people. The nodes are asked every ``ask_s`` seconds how they are; with None they are
    not, which a benchmark saves. Faults that last are ended by themselves in any case. Faults and what tends the
    deployment exclude each other by a lock: otherwise a node that is being wiped would be restarted.
    """

    def __init__(self, deployment: D, tell: Tell | None = None, ask_s: float | None = ASK_S) -> None:
        self.deployment = deployment
        self._tell: Tell = tell or (lambda _line: None)
        self._ask_s = ask_s
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._directory: Directory | None = None
        # A frozen node takes seconds to be given up, and no fault waits for that.
        self._threads = [threading.Thread(target=self._work, name="harness", daemon=True)]
        if ask_s is not None:
            self._threads.append(threading.Thread(target=self._ask, args=(ask_s,), name="harness-status", daemon=True))
        self._note_lock = threading.Lock()
        self._told: set[Reported] = set()
        self._executor = Executor(deployment, self.roles)
        self._readers: list[CollectedResults] = []
        self._trouble: str | None = None
        self.states: list[NodeStatus] = []
        self.divergences: set[DivergedUnit] = set()
        self.struck: list[Struck] = []
        self.tended: list[Notice] = []
        """Which processes have died by themselves or were restarted, in this order."""
        self.disturbed = time.monotonic()
        """When something was last done to the flow, or a fault ended, by the monotonic clock."""

    def start(self, ready_s: float = READY_S, progress: Tell | None = None) -> None:
        """Start everything for the first time and wait until all nodes run."""
        self.deployment.start(ready_s, progress or (lambda _line: None))
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End all faults and every process; closing again does nothing."""
        self._closed.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        with self._lock:
            self._executor.settle()
            for reader in self._readers:
                reader.pause()
            self._close_directory()
            self.deployment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- faults ---------------------------------------------------------------------------------------

    def strike(self, fault: Fault) -> Struck:
        """Do a fault now; what lasts is ended by itself when its time is over.

        If everything is restarted, results are read on behind the last ones that had come.
        """
        with self._lock:
            paused = self._readers if EVERYTHING in fault.targets() else []
            for reader in paused:
                reader.pause()
            if EVERYTHING in fault.targets():
                self._close_directory()
            struck = self._executor.strike(fault)
            for reader in paused:
                reader.resume()
            self.struck.append(struck)
            self.disturbed = time.monotonic()
        self._tell(struck.what)
        return struck

    @contextmanager
    def during(self, fault: Fault) -> Iterator[Struck]:
        """Do a fault that lasts, and end it at the end of the block, however long that takes."""
        struck = self.strike(fault)
        try:
            yield struck
        finally:
            until(lambda: self._end(struck), END_S, f"the end of {fault}")

    def _end(self, struck: Struck) -> bool:
        with self._lock:
            self.disturbed = time.monotonic()
            return self._executor.end(struck)

    @property
    def lasting(self) -> bool:
        """Whether a fault has yet to end."""
        return bool(self._executor.lasting)

    @property
    def lasting_s(self) -> float:
        """How long the longest of them still lasts."""
        return self._executor.left_s()

    def has_jvm(self, node: NodeId) -> bool:
        """Whether the Spark of a node has its JVM."""
        return jvm_of(self.deployment.process_of(node)) is not None

    def start_again(self, node: NodeId) -> bool:
        """Restart a killed node on what its disk holds; False if that is not possible yet."""
        with self._lock:
            return self.deployment.start_again(node)

    # --- results --------------------------------------------------------------------------------------

    def collect(self, sink: str) -> CollectedResults:
        """The results of a client sink, which are taken from now on to the end, whatever is restarted meanwhile."""
        results = CollectedResults(lambda after: self.deployment.subscribe(sink, after))
        results.resume()
        self._readers.append(results)
        return results

    def delivered(self) -> bool:
        """Whether the flow has ended and the nodes have put everything into its sinks."""
        return has_ended(self.deployment.topology, self.states)

    # --- what is seen ---------------------------------------------------------------------------------

    def look(self) -> list[NodeStatus]:
        """Ask the nodes now how they are."""
        self._note(self.deployment.status())
        return self.states

    def failure(self) -> str | None:
        """Why the flow cannot go on: a node that is missing, a shard without replicas, a fault that does not end."""
        return self.deployment.failure() or _all_stopped(self.states) or self._trouble

    def coordination(self) -> Directory | None:
        """Layout and members as ZooKeeper has them at this moment; None if it does not answer."""
        with self._lock:
            if self._directory is None:
                try:
                    place = self.deployment
                    self._directory = Directory(place.zookeeper, place.flow.name, token=place.token)
                except UnbrokenError:
                    return None
            return self._directory if self._directory.refresh() else None

    @property
    def layout(self) -> Layout:
        return until(lambda: None if (found := self.coordination()) is None else found.layout, READY_S, "the layout")

    @property
    def members(self) -> dict[NodeId, Member]:
        """The nodes that ZooKeeper holds for alive; none if it does not answer."""
        found = self.coordination()
        return {} if found is None else found.members

    def shortage(self, *, without: Sequence[NodeId] | None = None) -> str | None:
        """What is missing for the flow to be whole; None if nothing is.

        All nodes have to be there but for those that are gone for good, or that a fault keeps from working; these have
        to be missed before the layout says anything about them. If ``without`` is given, all others than these.
        """
        found = self.coordination()
        if found is None:
            return "ZooKeeper does not answer"
        members, layout = found.members, found.layout
        hit = self._hit() if without is None else set()
        if unmissed := hit & set(members):
            return f"{', '.join(sorted(unmissed))} has yet to be missed"
        absent = set(self.deployment.names) - set(members) - hit - set(without or ())
        if absent:
            return f"{', '.join(sorted(absent))} not there"
        return "no layout" if layout is None else shortage_of(layout, members, self.deployment.topology)

    def _hit(self) -> set[NodeId]:
        """The nodes that are gone, and those that do nothing as long as a fault lasts."""
        lasting = [each.fault for each in self._executor.lasting if isinstance(each.fault, Kill | Freeze | DiskFull)]
        hit = {node for struck in self.struck if struck.fault in lasting for node in struck.nodes}
        return hit | set(self.deployment.gone)

    def roles(self) -> Roles:
        """Who does what at this moment; while ZooKeeper is away, as it and the nodes said last."""
        leader = next((state.node for state in self.states if state.leading), None)
        if self.coordination() is not None:
            in_sync = self.in_sync()
            leader = None if in_sync is None else in_sync.leader
        with self._lock:
            layout = None if self._directory is None else self._directory.layout
        alive = [name for name in self.deployment.names if self.deployment.process_of(name).alive()]
        return Roles(leader, layout, alive)

    def in_sync(self) -> InSync | None:
        """The members of the ingress and its leader."""
        with self.coordinated() as client:
            return read_in_sync(client, self.deployment.flow.name)

    def leader(self) -> NodeId:
        """The node that leads the ingress."""
        found = self.in_sync()
        if found is None or not found.leader:
            raise UnbrokenError("no node leads the ingress at this moment")
        return found.leader

    def controller(self) -> NodeId | None:
        """The node that decides about the layout."""
        with self.coordinated() as client:
            candidates = client.Election(f"{root_of(self.deployment.flow.name)}/controller").contenders()
        return str(candidates[0]) if candidates else None

    def history(self) -> list[Reported]:
        """The flow's history; empty if ZooKeeper does not answer."""
        try:
            with self.coordinated() as client:
                return read_history(client, self.deployment.flow.name)
        except (UnbrokenError, KazooException, KazooTimeoutError):
            return []

    @contextmanager
    def coordinated(self) -> Iterator[KazooClient]:
        """A client of the flow's ZooKeeper."""
        client = connect(self.deployment.zookeeper, ANSWER_S, ANSWER_S, token=self.deployment.token)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    # --- the threads ----------------------------------------------------------------------------------

    def _work(self) -> None:
        tend = time.monotonic()
        while not self._closed.wait(LOOK_S):
            now = time.monotonic()
            with self._lock:
                try:
                    self._end_faults()
                    if now >= tend and not self._comes_back():
                        tend = now + TEND_S
                        for notice in self.deployment.tend():
                            self.tended.append(notice)
                            self._tell(text_of(notice))
                    self._trouble = None
                except (UnbrokenError, OSError) as error:
                    self._trouble = f"it could not be looked after: {error}"
                    self._tell(self._trouble)

    def _ask(self, every_s: float) -> None:
        while not self._closed.wait(every_s if self.states else LOOK_S):
            # While everything is restarted there is nobody to ask, and what is asked may be closed meanwhile.
            with contextlib.suppress(UnbrokenError, OSError, RuntimeError):
                self._note(self.deployment.status())

    def _comes_back(self) -> bool:
        """Whether a fault says when something is restarted, which must not happen earlier."""
        return any(isinstance(each.fault, Kill) for each in self._executor.lasting)

    def _end_faults(self) -> None:
        for ended in self._executor.end_due():
            self.disturbed = time.monotonic()
            self._tell(ended.what)

    def _note(self, states: list[NodeStatus]) -> None:
        with self._note_lock:
            self.states = states
            for state in states:
                self.divergences |= set(state.divergences)
                for reported in reports_of(state):
                    if reported not in self._told:
                        self._told.add(reported)
                        self._tell(line(reported))

    def _close_directory(self) -> None:
        if self._directory is not None:
            self._directory.close()
        self._directory = None


def _all_stopped(states: Sequence[NodeStatus]) -> str | None:
    """Why the replicas of a shard have all stopped; None if there is no such shard."""
    stopped: dict[str, list[str]] = {}
    at_work: set[str] = set()
    for state in states:
        for replica in state.replicas:
            shard = replica.replica.partition("#")[0]
            if replica.reason:
                stopped.setdefault(shard, []).append(f"{state.node}: {replica.reason}")
            else:
                at_work.add(shard)
    hopeless = sorted(set(stopped) - at_work)
    return f"all replicas of {hopeless[0]} have stopped; {stopped[hopeless[0]][0]}" if hopeless else None
