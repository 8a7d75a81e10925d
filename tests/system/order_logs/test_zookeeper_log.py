"""The order log in a ZooKeeper that is frozen, killed, restarted, or has deleted what is old."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError

from kit.orders.members import SHARD, Member, order, orders
from kit.orders.services import ZooKeeperService
from kit.support import TOKEN, wait_until
from unbroken.coordination.documents import connect
from unbroken.local.zookeeper_server import EmbeddedZooKeeper, serves
from unbroken.node.policies.leader.head import BATCH, HEAD, ORDER
from unbroken.node.policies.leader.log import LogEvent
from unbroken.node.policies.leader.zookeeper import AWAY, ZooKeeperOrderLog

Make = Callable[..., Member]
pytestmark = pytest.mark.servers


class Keeping(ZooKeeperService):
    """Logs that keep a few orders only."""

    def open(self, node: str, post: Callable[[LogEvent], None], deadline_s: float, keep: int = 20) -> ZooKeeperOrderLog:
        return super().open(node, post, deadline_s, keep)


@pytest.fixture
def zk(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    client = connect(zookeeper.address, 2.0, token=TOKEN)
    yield client
    client.stop()
    client.close()


@contextmanager
def frozen(server: EmbeddedZooKeeper) -> Iterator[None]:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        # Some of its threads may run on for a moment.
        wait_until(lambda: not serves(server.host, server.port, 0.1), 30, "the server to be frozen")
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def path_of(service: ZooKeeperService) -> str:
    return f"/unbroken/{service.name}/orders/{SHARD}"


def test_a_frozen_server_refuses_in_time_and_everything_goes_on_after_it(
    zookeeper: EmbeddedZooKeeper, in_zookeeper: ZooKeeperService, member: Make
) -> None:
    a, b = member(in_zookeeper, "a", 0.5).follow(), member(in_zookeeper, "b", 0.5).follow()
    a.lead(1)
    a.log.publish(SHARD, 1, orders(1, 3, 1))
    b.wait_orders(3)
    with frozen(zookeeper):
        begun = time.monotonic()
        a.log.publish(SHARD, 1, [order(4, 1)])
        a.log.publish(SHARD, 1, [order(5, 1)])
        b.log.lead(SHARD, 2)
        assert a.wait_refusal(1).reason == b.wait_refusal(2).reason == AWAY
        assert time.monotonic() - begun < 10.0
    # What was refused may have got in: both look at what is there, and go on from it.
    a.wait(lambda: a.log._client.connected and b.log._client.connected, "the sessions")  # type: ignore[attr-defined]
    c = member(in_zookeeper, "c").follow()
    known = c.lead(c.wait_leader().term + 1)
    c.log.publish(SHARD, known.term, [order(known.last + 1, known.term)])
    read = c.wait_orders(known.last + 1)
    assert a.wait_orders(known.last + 1) == b.wait_orders(known.last + 1) == read


def test_a_killed_server_comes_back_with_all_orders(
    zookeeper: EmbeddedZooKeeper, in_zookeeper: ZooKeeperService, member: Make
) -> None:
    a, b, c = (member(in_zookeeper, name, each).follow() for name, each in (("a", 10.0), ("b", 5.0), ("c", 0.5)))
    a.lead(1)
    a.log.publish(SHARD, 1, orders(1, 3, 1))
    for each in (a, b, c):
        each.wait_orders(3)
    zookeeper.kill9()
    a.wait(lambda: not a.log._client.connected, "the loss to be noticed")  # type: ignore[attr-defined]
    a.log.publish(SHARD, 1, [order(4, 1)])
    c.log.lead(SHARD, 2)
    assert c.wait_refusal(2).reason == AWAY
    zookeeper.start()
    for each in (a, b, c):
        assert each.wait_orders(4) == orders(1, 4, 1)
    assert not a.refusals()
    assert b.lead(2).last == 4


def test_a_lost_session_is_not_noticed(
    zookeeper: EmbeddedZooKeeper, in_zookeeper: ZooKeeperService, member: Make
) -> None:
    a, b = member(in_zookeeper, "a").follow(), member(in_zookeeper, "b").follow()
    a.lead(1)
    for one in (a, b):
        client = one.log._client  # type: ignore[attr-defined]
        before = client.client_id
        thief = KazooClient(hosts=zookeeper.address, client_id=before)
        thief.start(timeout=10)
        thief.stop()
        thief.close()
        wait_until(lambda: client.client_id not in (None, before), 30, "another session")  # noqa: B023
    a.log.publish(SHARD, 1, orders(1, 3, 1))
    assert b.wait_orders(3) == orders(1, 3, 1)


def test_a_delayed_transaction_of_an_old_leader_is_refused_by_the_server(
    in_zookeeper: ZooKeeperService, member: Make, zk: KazooClient
) -> None:
    a, b = member(in_zookeeper, "a").follow(), member(in_zookeeper, "b").follow()
    a.lead(1)
    a.log.publish(SHARD, 1, orders(1, 3, 1))
    b.wait_orders(3)
    path = path_of(in_zookeeper)
    data, stat = zk.get(path)
    late = zk.transaction()
    late.set_data(path, HEAD.encode(HEAD.decode(data).add([order(4, 1, last=99)], 1_000)), stat.version)
    late.create(f"{path}/4", ORDER.encode(order(4, 1, last=99)))
    b.lead(2)
    assert isinstance(late.commit()[0], BadVersionError)
    b.log.publish(SHARD, 2, [order(4, 2)])
    assert a.wait_orders(4)[-1] == order(4, 2)


def test_old_orders_are_deleted_and_whoever_wants_them_is_told(
    in_zookeeper: ZooKeeperService, member: Make, zk: KazooClient
) -> None:
    service = Keeping(in_zookeeper.address, in_zookeeper.name)
    a, b = member(service, "a").follow(), member(service, "b")
    a.lead(1)
    a.log.publish(SHARD, 1, orders(1, 15, 1))
    a.log.publish(SHARD, 1, orders(16, BATCH + 30, 1))
    a.log.publish(SHARD, 1, orders(BATCH + 31, BATCH + 50, 1))
    a.wait_orders(BATCH + 50)
    kept = sorted(int(name) for name in zk.get_children(path_of(service)))
    assert kept == list(range(BATCH + 31, BATCH + 51))
    b.follow(after=BATCH + 29)
    b.wait(lambda: bool(b.lost()), "the loss")
    assert (b.lost()[0].after, b.lost()[0].first) == (BATCH + 29, BATCH + 31)
    assert not b.orders()
    b.follow(after=BATCH + 30)
    assert b.wait_orders(BATCH + 50) == orders(BATCH + 31, BATCH + 50, 1)


def test_a_log_that_somebody_damaged_is_not_written_to(
    in_zookeeper: ZooKeeperService, member: Make, zk: KazooClient
) -> None:
    a = member(in_zookeeper, "a").follow()
    a.lead(1)
    a.log.publish(SHARD, 1, orders(1, 3, 1))
    a.wait_orders(3)
    zk.create(f"{path_of(in_zookeeper)}/4", b"")
    a.log.publish(SHARD, 1, [order(4, 1)])
    assert "is damaged (NodeExistsError)" in a.wait_refusal(1).reason
    zk.delete(path_of(in_zookeeper), recursive=True)
    a.wait(lambda: bool(a.lost()), "the loss")
    assert (a.lost()[0].after, a.lost()[0].first) == (3, 1)
