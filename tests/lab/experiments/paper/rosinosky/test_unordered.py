"""Replicas that nobody orders: each follows its own orders, and what a run says of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.experiments.trying import drawn, try_out
from unbroken.node.policies.leader import order_logs
from unbroken.node.policies.leader.log import LogEvent
from unbroken.observe.notices import text_of
from unbroken.protocol.output.divergence import DigestBook, Divergence
from unbroken.protocol.policies.leader.instructions import FollowOrders, Lead, Publish
from unbroken.protocol.policies.leader.orders import LeaderKnown, Order, Ordered, OrderRefused
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.replicas import LeaderElected, ReplicaDiverged
from unbroken.protocol.values.units import Digest
from unbroken_lab.experiments.experiment import Row, Size, number
from unbroken_lab.experiments.paper.rosinosky.unordered import COMPARED, IGNORED, Divergences, Unordered
from unbroken_lab.experiments.parameters.arrival import OwnOrders, take_what_arrives
from unbroken_lab.experiments.parameters.ways import LEADER, PULSE, UNORDERED
from unbroken_lab.sim.flows import join
from unbroken_lab.sim.machine import NodeProcess
from unbroken_lab.sim.policies import leader
from unbroken_lab.sim.world import Setup, World

SHARD = ShardId("both", 0)
STREAM = StreamId(ShardId("rare", 0), SHARD)


def order(number: int, last: int, term: int = 1) -> Order:
    return Order(number, {STREAM: last}, term)


def test_every_node_leads_itself_and_reads_only_its_own_orders() -> None:
    heard: dict[str, list[LogEvent]] = {"a": [], "b": []}
    logs = {name: OwnOrders(name, told.append) for name, told in heard.items()}
    for name, log in logs.items():
        log.follow(SHARD, 0)
        log.lead(SHARD, 1)
        log.publish(SHARD, 1, [order(1, 5 if name == "a" else 6)])
    for name, told in heard.items():
        one = order(1, 5 if name == "a" else 6)
        assert told == [LeaderKnown(SHARD, 1, name, 0), Ordered(SHARD, (one,))]


def test_a_replica_that_begins_anew_leads_in_a_later_term_and_goes_on_from_its_state() -> None:
    heard: list[LogEvent] = []
    log = OwnOrders("a", heard.append)
    log.publish(SHARD, 1, [order(1, 1)])
    log.lead(SHARD, 1)
    assert [type(event) for event in heard] == [OrderRefused, OrderRefused]
    log.follow(SHARD, 0)
    log.lead(SHARD, 1)
    log.follow(SHARD, 7)
    heard.clear()
    log.publish(SHARD, 1, [order(8, 9)])
    log.lead(SHARD, 1)
    assert isinstance(heard[0], OrderRefused) and isinstance(heard[1], OrderRefused)
    assert heard[2] == LeaderKnown(SHARD, 1, "a", 7)
    log.lead(SHARD, 2)
    log.publish(SHARD, 2, [order(8, 9, 2)])
    assert heard[3:] == [LeaderKnown(SHARD, 2, "a", 7), Ordered(SHARD, (order(8, 9, 2),))]
    log.close()
    log.publish(SHARD, 2, [order(9, 10, 2)])
    assert isinstance(heard[-1], OrderRefused)


def test_a_process_that_is_no_node_stays_as_it_is() -> None:
    before = order_logs.open_order_log, DigestBook.note
    take_what_arrives(compare=False)
    assert (order_logs.open_order_log, DigestBook.note) == before


class OwnOrdersOf:
    """The orders of a simulated node, kept by nobody else."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process
        self._claims: dict[tuple[ShardId, int], int] = {}
        self._log = OwnOrders(process.name, self._heard)

    def follow(self, step: FollowOrders) -> None:
        self._log.follow(step.shard, step.after)

    def forget(self, shard: ShardId) -> None:
        self._log.forget(shard)

    def ask(self, request: Lead | Publish) -> None:
        if isinstance(request, Lead):
            self._claims.setdefault((request.shard, request.term), request.claim)
            self._log.lead(request.shard, request.term)
        else:
            self._log.publish(request.shard, request.term, request.orders)

    def look(self, shard: ShardId) -> None:
        """Nobody else writes anything."""

    def look_at_all(self) -> None:
        """Nobody else writes anything."""

    def _heard(self, event: LogEvent) -> None:
        if isinstance(event, LeaderKnown):
            event = replace(event, claim=self._claims.get((event.shard, event.term), 0))
        self._process.post(event)


@pytest.mark.parametrize("own", [True, False])
def test_replicas_of_a_join_differ_without_a_shared_log_and_it_is_found(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real protocol in a simulated world, whose own look at every unit is switched off to see the product's."""
    if own:
        monkeypatch.setattr(leader, "Orders", OwnOrdersOf)
    topology = join()
    world = World(Setup(replace(topology, led=frozenset(topology.segments)), 3), seed=1)
    write = world.write_unit
    monkeypatch.setattr(world, "write_unit", lambda disk, header, content, _: write(disk, header, content, False))
    world.kernel.run(8_000.0, 1_000_000)
    told = [each for each in world.zookeeper.history if isinstance(each.notice, ReplicaDiverged)]
    assert bool(told) == own, told


def test_differences_are_counted_once_however_many_tell_them() -> None:
    one, other = ReplicaId(SHARD, 0), ReplicaId(SHARD, 1)
    found = Divergence(STREAM, 3, one, other, Digest(2, 1), Digest(3, 1))
    later = Divergence(STREAM, 9, one, ReplicaId(SHARD, 2), Digest(2, 1), Digest(3, 1))
    history = [
        Reported(40, "node-2", found.notice()),
        Reported(30, "node-1", found.notice()),
        Reported(90, "node-1", later.notice()),
        Reported(10, "node-1", LeaderElected("node-1", SHARD, 1)),
    ]
    assert Divergences.of(history) == Divergences(2, 30.0, text_of(found.notice()))
    assert Divergences.of(history[3:]) == Divergences(0, None, "")


def test_what_was_found_stands_beside_what_was_agreed(tmp_path: Path) -> None:
    def row(way: str, digests: str, divergences: int, lost: int) -> Row:
        found = {"divergences": divergences, "first_after_s": 1.5 if divergences else None, "told": "it diverged"}
        return {"way": way, "digests": digests, "seconds": 40.0, **found, "due": 900, "lost": lost, "duplicated": 0}

    rows = [row(UNORDERED, COMPARED, 3, 0), row(UNORDERED, IGNORED, 0, 70), row(PULSE, COMPARED, 0, 0)]
    found = drawn(Unordered(), rows, tmp_path)
    first, second, *_ = found.values()
    assert "3 differences found in 40 s, the first 1.5 s after the first result" in first.here
    assert "70 of 900 rows lost" in second.here
    assert "differences are not looked for" in second.here
    assert len(found) == len(rows) and all(claim.agrees for claim in found.values())
    assert [case["way"] for case in Unordered().cases(Size())] == [UNORDERED, UNORDERED, LEADER, PULSE]


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_the_product_notices_that_its_replicas_differ(tmp_path: Path) -> None:
    (row,) = try_out("unordered", tmp_path)
    assert (number(row, "divergences") or 0) > 0
    assert row["told"]
