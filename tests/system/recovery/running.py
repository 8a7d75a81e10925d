"""One running flow that cases are tried on, one after the other: what is done to it, and what is seen of it."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from click.testing import CliRunner

from kit.support import wait_until
from unbroken.cli import cli
from unbroken.client import Result
from unbroken.observe.status.summary import divergence_text
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.notices import Notice
from unbroken.testing.faults import Kill, Wipe
from unbroken.testing.harness.cluster import ExposedCluster
from unbroken.testing.harness.harness import Harness
from unbroken.testing.harness.local import LocalDeployment
from unbroken.testing.injection.disks import mountable
from unbroken_lab.chaos.judge import judge

SEED = 7
NODES = 4
ODD: NodeId = "node-4"
"""The node whose way to ZooKeeper can be cut and whose disk can be filled."""

KEYS, GROUPS = ShardId("keys", 0), ShardId("groups", 0)
"""The shards of producer and consumer."""

FLOW_FILE = Path(__file__).with_name("single_flow.py")
SINK = "live"
FIRST_S = 300.0
RESULTS_S = 180.0
NOTICED_S = 180.0
WHOLE_S = 300.0
"""Deadlines for a machine with other things to do; everything here usually takes a few seconds."""

FURTHER = 3
"""Results that have to come for the flow to be going on: the first ones may have been on their way."""


class Running(Harness[LocalDeployment[ExposedCluster]]):
    """The flow, a reader of its results, and what is waited for by this directory's tests.

    A case that leaves the flow unable to recover fails the following ones at once.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.given_up = ""
        small_disks = () if mountable() else (ODD,)

        def make() -> ExposedCluster:
            return ExposedCluster(
                FLOW_FILE, directory / "state", cuttable=True, small_disks=small_disks, nodes=NODES, standbys=0
            )

        super().__init__(LocalDeployment(make), self.say)

    def begin(self) -> None:
        self.start()
        self.results = self.collect(SINK)
        wait_until(lambda: self.received, FIRST_S, "the first result")

    @property
    def cluster(self) -> ExposedCluster:
        return self.deployment.cluster

    @property
    def received(self) -> list[Result]:
        return self.results.received

    def end(self) -> None:
        """Let the source end, and wait until everything is delivered."""
        (self.directory / "stop").touch()
        wait_until(lambda: self.results.ended, RESULTS_S, "the final unit")
        wait_until(self.delivered, RESULTS_S, "the final unit in the files")

    # --- what is seen ---------------------------------------------------------------------------------

    def is_member(self, node: NodeId) -> bool:
        return node in self.members

    def redundant(self) -> bool:
        """Whether every shard has its replicas on nodes that are there, whoever else is missing."""
        return self.shortage(without=self.deployment.names) is None

    def spares(self, *victims: NodeId) -> bool:
        """Whether every shard has a replica elsewhere."""
        layout = self.layout
        return all(set(layout.full_nodes_of(shard)) - set(victims) for shard in self.cluster.topology.placed_shards)

    def notices(self) -> list[Notice]:
        return [reported.notice for reported in self.history()]

    def totals(self, part: str) -> Counter[str]:
        """What all nodes have counted so far under ``part`` of their status."""
        out: Counter[str] = Counter()
        for state in self.cluster.status():
            out.update(getattr(state, part))
        return out

    def complaints(self, complete: bool = False) -> list[str]:
        """What is wrong with the results, up to now or as a whole."""
        judgement = judge(SEED, list(self.received), self.directory / "results", complete=complete)
        return [*judgement.complaints, *map(divergence_text, sorted(self.divergences))]

    # --- what is done ---------------------------------------------------------------------------------

    def command(self, *words: str) -> str:
        """Run an `unbroken` command as a user does; what it printed."""
        result = CliRunner().invoke(cli, [*words, "--dir", str(self.cluster.directory)])
        assert result.exit_code == 0, f"unbroken {' '.join(words)}: {result.output}"
        return result.output

    def lose(self, *nodes: NodeId) -> None:
        """Kill nodes at once, and wait until results go on and everything is redundant again."""
        before = {replica for node in nodes for replica in self.layout.hosted(node)}
        pids = {node: self.cluster.nodes[node].pid for node in nodes}
        self.say(f"{', '.join(nodes)} have {', '.join(sorted(map(str, before)))}")
        for node in nodes:
            self.strike(Kill(node))
        self.await_results()
        wait_until(lambda: self._noticed(before, pids), NOTICED_S, f"{', '.join(nodes)} to be missed", 0.2)
        self.await_whole()

    def wipe(self, *nodes: NodeId) -> None:
        """Kill nodes at once and delete their disks before they are started again."""
        with self._lock:
            for node in nodes:
                self.strike(Kill(node))
            for node in nodes:
                self.strike(Wipe(node))

    def occupy(self, node: NodeId, shard: ShardId) -> ReplicaId:
        """See to it that ``node`` has a replica of ``shard``; which one that is."""
        if self.layout.replica_on(node, shard) is None:
            # With two nodes out of use the shard has nowhere else to go.
            host, *_ = hosts = list(self.layout.nodes_of(shard))
            bystander = next(other for other in self.cluster.nodes if other not in (node, *hosts))
            self.command("drain", bystander, "--wait", "0")
            self.command("drain", host)
            for other in (bystander, host):
                self.command("drain", other, "--undo")
            self.await_whole()
        found = self.layout.replica_on(node, shard)
        assert found is not None
        return found

    # --- what is waited for ---------------------------------------------------------------------------

    def await_results(self, further: int = FURTHER) -> None:
        seen = len(self.received)
        wait_until(lambda: len(self.received) >= seen + further, RESULTS_S, "further results", 0.05)

    def await_whole(self) -> None:
        """Wait until all nodes are there, every shard is redundant, and results come."""
        self.await_redundancy()
        self.await_results()

    def await_redundancy(self) -> None:
        assert not self.given_up, f"not tried, because of an earlier failure: {self.given_up}"
        try:
            wait_until(lambda: self.shortage() is None, WHOLE_S, lambda: f"the flow is whole: {self.shortage()}", 0.2)
        except AssertionError as error:
            self.given_up = str(error)
            raise

    def _noticed(self, before: set[ReplicaId], pids: dict[NodeId, int]) -> bool:
        """Whether lost replicas are given up, or their nodes are back on their disks before anybody missed them."""
        layout, members = self.layout, self.members
        back = all(node in members and members[node].pid != pid for node, pid in pids.items())
        return back or not before & set(layout.placement)

    def say(self, sentence: str) -> None:
        """Keep a sentence beside what the nodes tell."""
        with (self.directory / "run.log").open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {sentence}\n")
