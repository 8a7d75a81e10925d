"""Simulated links: order, bandwidth, what is noticed when, and ways that are blocked and free again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from unbroken.protocol.events import Event, LinkLost, LinkUp, Received, SubscriberGone, UnitArrived
from unbroken.protocol.messages import Ping
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken_lab.sim.content import Content
from unbroken_lab.sim.kernel import Kernel
from unbroken_lab.sim.links import LinkModel, Network

STREAM = StreamId.parse("a.0>b.0")
MODEL = LinkModel()


@dataclass
class FakeProcess:
    name: str
    kernel: Kernel
    alive: bool = True
    frozen: bool = False
    seen: list[tuple[float, Event]] = field(default_factory=list)

    def post(self, event: Event, payload: Any = None) -> None:
        self.seen.append((self.kernel.now_ms, event))

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for _, event in self.seen if isinstance(event, kind)]

    def when(self, kind: type[Any]) -> float:
        return next(ms for ms, event in self.seen if isinstance(event, kind))


def linked() -> tuple[Kernel, Network, FakeProcess, FakeProcess]:
    kernel = Kernel(1)
    network = Network(kernel, MODEL)
    one, two = FakeProcess("one", kernel), FakeProcess("two", kernel)
    network.join(one, ["one", "two"])
    network.join(two, ["one", "two"])
    kernel.run(1_000.0)
    assert one.of(LinkUp) == [LinkUp("two")]
    assert two.of(LinkUp) == [LinkUp("one")]
    return kernel, network, one, two


def unit(number: int, size: int = 0) -> UnitHeader:
    return UnitHeader(STREAM, number, number, number, Digest(1, number), size)


CONTENT = Content(1, 1, 1, 1)


def test_messages_and_units_arrive_in_order_after_the_latency() -> None:
    kernel, network, one, two = linked()
    for number in range(50):
        network.send("one", "two", Ping(number))
        network.send_unit("one", "two", unit(number + 1), CONTENT)
    kernel.run(1_100.0)
    assert two.of(Received) == [Received("one", Ping(number)) for number in range(50)]
    assert [event.header.number for event in two.of(UnitArrived)] == list(range(1, 51))
    assert two.when(Received) >= 1_000.0 + MODEL.latency_ms
    assert not one.of(Received)


def test_large_units_take_their_time() -> None:
    kernel, network, _, two = linked()
    network.send_unit("one", "two", unit(1, 12_500_000), CONTENT)
    network.send_unit("one", "two", unit(2, 12_500_000), CONTENT)
    kernel.run(2_000.0)
    times = [ms for ms, event in two.seen if isinstance(event, UnitArrived)]
    assert 1_100.0 <= times[0] <= 1_102.0
    assert 1_200.0 <= times[1] <= 1_202.0


def test_a_killed_process_is_noticed_at_once() -> None:
    kernel, network, one, two = linked()
    one.alive = False
    network.ended("one", silently=False)
    kernel.run(1_100.0)
    assert two.of(LinkLost) == [LinkLost("one")]
    assert two.of(SubscriberGone) == [SubscriberGone("one")]
    assert two.when(LinkLost) < 1_010.0


def test_lost_power_is_noticed_by_silence() -> None:
    kernel, network, one, two = linked()
    one.alive = False
    network.ended("one", silently=True)
    kernel.run(2_700.0)
    assert not two.of(LinkLost)
    kernel.run(10_000.0)
    assert 1_000.0 + MODEL.timeout_ms - MODEL.heartbeat_ms <= two.when(LinkLost) <= 1_000.0 + MODEL.timeout_ms
    assert two.of(SubscriberGone) == [SubscriberGone("one")]


def test_a_process_that_is_back_is_connected_again() -> None:
    kernel, network, one, two = linked()
    one.alive = False
    network.ended("one", silently=True)
    again = FakeProcess("one", kernel)
    kernel.run(1_300.0)
    network.join(again, ["one", "two"])
    kernel.run(2_000.0)
    assert two.of(LinkLost) == [LinkLost("one")]
    assert two.of(LinkUp) == [LinkUp("one"), LinkUp("one")]
    assert again.of(LinkUp) == [LinkUp("two")]
    network.send("two", "one", Ping(1))
    kernel.run(2_100.0)
    assert again.of(Received) == [Received("two", Ping(1))]


def test_a_short_partition_only_delays() -> None:
    kernel, network, _, two = linked()
    network.block("one", "two")
    network.block("two", "one")
    network.send("one", "two", Ping(1))
    network.send_unit("one", "two", unit(1), CONTENT)
    kernel.run(1_800.0)
    assert not two.of(Received)
    assert not two.of(UnitArrived)
    network.unblock("one", "two")
    network.unblock("two", "one")
    kernel.run(10_000.0)
    assert two.of(Received) == [Received("one", Ping(1))]
    assert len(two.of(UnitArrived)) == 1
    assert not two.of(LinkLost)


def test_a_long_partition_breaks_the_links_until_it_is_over() -> None:
    kernel, network, one, two = linked()
    network.block("one", "two")
    network.block("two", "one")
    network.send("one", "two", Ping(1))
    kernel.run(9_000.0)
    assert one.of(LinkLost) == [LinkLost("two")]
    assert two.of(LinkLost) == [LinkLost("one")]
    assert two.of(SubscriberGone) == [SubscriberGone("one")]
    network.unblock("one", "two")
    network.unblock("two", "one")
    kernel.run(10_000.0)
    assert one.of(LinkUp) == [LinkUp("two")] * 2
    assert not two.of(Received), "what was sent over a link that broke is lost"


def test_a_way_can_be_blocked_in_one_direction() -> None:
    kernel, network, one, two = linked()
    network.block("one", "two")
    network.send("one", "two", Ping(1))
    network.send("two", "one", Ping(2))
    kernel.run(1_100.0)
    assert not two.of(Received)
    assert one.of(Received) == [Received("two", Ping(2))]


def test_a_frozen_server_is_missed_and_found_again() -> None:
    kernel, network, one, two = linked()
    one.frozen = True
    network.froze("one")
    kernel.run(5_000.0)
    assert two.of(LinkLost) == [LinkLost("one")]
    assert not network.hears("two", "one")
    one.frozen = False
    network.thawed("one")
    kernel.run(6_000.0)
    assert two.of(LinkUp) == [LinkUp("one")] * 2
    assert network.connected("two") == {"one", "two"}


def test_a_connection_that_is_cut_is_made_again() -> None:
    kernel, network, one, two = linked()
    network.send_unit("two", "one", unit(1), CONTENT)
    network.cut("one", "two")
    kernel.run(2_000.0)
    assert one.of(LinkLost) == [LinkLost("two")]
    assert one.of(LinkUp) == [LinkUp("two")] * 2
    assert two.of(SubscriberGone) == [SubscriberGone("one")]
    assert not one.of(UnitArrived), "what was under way is lost"


def test_a_connection_that_is_cut_while_its_client_is_frozen_is_made_again() -> None:
    kernel, network, one, two = linked()
    one.frozen = True
    network.froze("one")
    network.cut("one", "two")
    kernel.run(1_200.0)
    assert two.of(SubscriberGone) == [SubscriberGone("one")]
    one.frozen = False
    network.thawed("one")
    kernel.run(1_500.0)
    assert one.of(LinkLost) == [LinkLost("two")]
    network.send_unit("two", "one", unit(1), CONTENT)
    kernel.run(1_600.0)
    assert [event.header.number for event in one.of(UnitArrived)] == [1]
