"""The ring against a small network: whoever is well is not suspected for long, and whoever is not is, in time."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kit.layouts import layout
from unbroken.protocol.instructions import Instruction, Send, Suspect, Trust
from unbroken.protocol.messages import Ping, Pong
from unbroken.protocol.placement.ring import Ring, followers
from unbroken.protocol.values.ids import NodeId

NODES = ("a", "b", "c", "d")
WAY_MS = 7.0
"""How long a message is on its way."""


@dataclass
class Peer:
    """A node with nothing but its ring; while frozen it handles nothing, and what arrives waits."""

    ring: Ring
    links: set[NodeId] = field(default_factory=set)
    frozen: bool = False
    waiting: list[tuple[NodeId, Ping | Pong]] = field(default_factory=list)
    suspected: set[NodeId] = field(default_factory=set)


class RingMachine(RuleBasedStateMachine):
    """Nodes are killed, lost silently, frozen, cut off from each other, and return; the layout changes.

    ``well`` says since when a node and the one that watches it have been up, awake, linked and placed as they are;
    ``ill`` since when the watched one has not been while the one that watches it was.
    """

    @initialize(misses=st.integers(1, 4))
    def begin(self, misses: int) -> None:
        self.now = 0.0
        self.misses = misses
        self.serial = count()
        self.flying: list[tuple[float, int, NodeId, NodeId, Ping | Pong]] = []
        self.peers: dict[NodeId, Peer] = {}
        self.lost: set[NodeId] = set()
        self.well: dict[tuple[NodeId, NodeId], float] = {}
        self.ill: dict[tuple[NodeId, NodeId], float] = {}
        self.last_ping: dict[tuple[NodeId, NodeId], float] = {}
        self.layout = layout({"totals.0#0": "a", "totals.0#1": "b", "counts.0#0": "c", "counts.1#0": "d"})
        for name in NODES:
            self.start(name)

    # --- effects ----------------------------------------------------------------------------------------

    def start(self, name: NodeId) -> None:
        self.peers[name] = Peer(Ring(name, 100.0, self.misses))
        self.obey(name, self.peers[name].ring.placed(self.layout))
        for other in self.peers:
            self.link(name, other)
        self.tick(name)

    def link(self, one: NodeId, other: NodeId) -> None:
        """A connection each way, if both are there to make it."""
        ends = [self.peers.get(end) for end in (one, other)]
        if one == other or any(end is None or end.frozen for end in ends) or {one, other} & self.lost:
            return
        for me, peer in ((one, other), (other, one)):
            self.peers[me].links.add(peer)
            self.peers[me].ring.link_up(peer)
            self.last_ping.pop((me, peer), None)
        for me in (one, other):
            self.tick(me)

    def unlink(self, me: NodeId, peer: NodeId) -> None:
        """One end notices that its connection is broken; what it had sent is lost."""
        self.flying = [f for f in self.flying if (f[2], f[3]) != (me, peer)]
        heapq.heapify(self.flying)
        if peer in self.peers[me].links:
            self.peers[me].links.discard(peer)
            self.obey(me, self.peers[me].ring.link_lost(peer))
            assert peer in self.peers[me].suspected or peer not in followers(self.layout, me)
            self.tick(me)

    def tick(self, name: NodeId) -> None:
        peer = self.peers[name]
        self.obey(name, peer.ring.tick(self.now, peer.links))
        peer.ring.check()
        assert all(wake > self.now for wake in peer.ring.wake_times_ms())

    def obey(self, name: NodeId, steps: list[Instruction]) -> None:
        peer = self.peers[name]
        for step in steps:
            match step:
                case Send(to, Ping() | Pong() as message):
                    assert to != name, "a node asks itself"
                    assert to in peer.links or isinstance(message, Pong), "there is no link to ask over"
                    if isinstance(message, Ping):
                        assert self.now - self.last_ping.get((name, to), -1e9) >= 100.0, "asked more than once a period"
                        self.last_ping[name, to] = self.now
                    if to in peer.links:
                        heapq.heappush(self.flying, (self.now + WAY_MS, next(self.serial), name, to, message))
                case Suspect(node):
                    assert node not in peer.suspected and node in followers(self.layout, name)
                    peer.suspected.add(node)
                case Trust(node, heard):
                    assert heard == (node in followers(self.layout, name))
                    peer.suspected.remove(node)

    def arrive(self, sender: NodeId, to: NodeId, message: Ping | Pong) -> None:
        peer = self.peers.get(to)
        if peer is None or to in self.lost:
            return
        if peer.frozen:
            peer.waiting.append((sender, message))
        else:
            answer = isinstance(message, Pong)
            number = message.number
            self.obey(to, peer.ring.answered(sender, number) if answer else [Send(sender, Pong(number))])
            self.tick(to)

    def pass_until(self, end: float) -> None:
        while True:
            awake = [n for n, peer in self.peers.items() if not peer.frozen and n not in self.lost]
            wakes = [(wake, n) for n in awake for wake in self.peers[n].ring.wake_times_ms()]
            arrival = self.flying[0][0] if self.flying else end + 1
            wake, name = min(wakes, default=(end + 1, ""))
            if min(arrival, wake) > end:
                break
            self.now = max(self.now, min(arrival, wake))
            if arrival <= wake:
                _, _, sender, to, message = heapq.heappop(self.flying)
                self.arrive(sender, to, message)
            else:
                self.tick(name)
            self.judge()
        self.now = end
        self.judge()

    # --- what happens -----------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1.0, 5.0, 20.0, 60.0, 100.0, 250.0, 600.0]))
    def wait(self, ms: float) -> None:
        self.pass_until(self.now + ms)

    @rule(name=st.sampled_from(NODES))
    def kill(self, name: NodeId) -> None:
        """Its connections break, and those who are awake notice."""
        if self.peers.pop(name, None) is None:
            return
        self.lost.discard(name)
        for other in self.peers:
            if not self.peers[other].frozen and other not in self.lost:
                self.unlink(other, name)
        self.note()

    @rule(name=st.sampled_from(NODES))
    def lose(self, name: NodeId) -> None:
        """The machine is gone without a word: connections look as before."""
        if name in self.peers:
            self.lost.add(name)
            self.note()

    @rule(name=st.sampled_from(NODES))
    def freeze(self, name: NodeId) -> None:
        if name in self.peers:
            self.peers[name].frozen = True
            self.note()

    @rule(name=st.sampled_from(NODES))
    def thaw(self, name: NodeId) -> None:
        peer = self.peers.get(name)
        if peer is None or not peer.frozen or name in self.lost:
            return
        peer.frozen = False
        self.tick(name)
        waiting, peer.waiting = peer.waiting, []
        for sender, message in waiting:
            self.arrive(sender, name, message)
        for other in set(NODES) - set(self.peers) | self.lost:
            self.unlink(name, other)
        self.note()

    @rule(name=st.sampled_from(NODES))
    def come_back(self, name: NodeId) -> None:
        if name in self.peers and name not in self.lost:
            return
        self.kill(name)
        self.start(name)
        self.note()

    @rule(one=st.sampled_from(NODES), other=st.sampled_from(NODES))
    def cut(self, one: NodeId, other: NodeId) -> None:
        """The connections between two nodes break."""
        if one != other and all(
            n in self.peers and n not in self.lost and not self.peers[n].frozen for n in (one, other)
        ):
            self.unlink(one, other)
            self.unlink(other, one)
            self.note()

    @rule(one=st.sampled_from(NODES), other=st.sampled_from(NODES))
    def connect(self, one: NodeId, other: NodeId) -> None:
        if other not in self.peers or one not in self.peers or other in self.peers[one].links:
            return
        self.link(one, other)
        self.note()

    @rule(
        totals=st.lists(st.sampled_from(NODES), unique=True, max_size=4),
        counts=st.lists(st.sampled_from(NODES), max_size=3),
    )
    def place(self, totals: list[NodeId], counts: list[NodeId]) -> None:
        places = {f"totals.0#{i}": node for i, node in enumerate(totals)}
        places |= {f"counts.{i}#0": node for i, node in enumerate(counts)}
        self.layout = layout(places, self.layout.version + 1)
        for name, peer in self.peers.items():
            self.obey(name, peer.ring.placed(self.layout))
        asked = {(name, node) for name in self.peers for node in followers(self.layout, name)}
        self.last_ping = {pair: when for pair, when in self.last_ping.items() if pair in asked}
        for name, peer in self.peers.items():
            if not peer.frozen and name not in self.lost:
                self.tick(name)
        self.note()

    # --- what holds -------------------------------------------------------------------------------------

    def note(self) -> None:
        """Work out since when each pair is as it is."""
        well: dict[tuple[NodeId, NodeId], float] = {}
        ill: dict[tuple[NodeId, NodeId], float] = {}
        for name, peer in self.peers.items():
            if peer.frozen or name in self.lost:
                continue
            for node in followers(self.layout, name):
                there = self.peers.get(node)
                up = there is not None and not there.frozen and node not in self.lost
                pair = (name, node)
                if up and there is not None and node in peer.links and name in there.links:
                    well[pair] = self.well.get(pair, self.now)
                elif not up:
                    ill[pair] = self.ill.get(pair, self.now)
        self.well, self.ill = well, ill

    def judge(self) -> None:
        slack = 1e-6
        # With a single miss, what was asked while the answer was on its way is to be answered, too.
        trip = 2 * WAY_MS if self.misses > 1 else 4 * WAY_MS
        for (name, node), since in self.well.items():
            if self.now - since > trip + slack:
                assert node not in self.peers[name].suspected, f"{name} suspects {node}, which is well since {since}"
        for (name, node), since in self.ill.items():
            if self.now - since > 100.0 * (self.misses + 1) + slack:
                assert node in self.peers[name].suspected, f"{name} does not suspect {node}, which is ill since {since}"

    @precondition(lambda self: hasattr(self, "peers"))
    @invariant()
    def sound(self) -> None:
        self.note()
        self.judge()
        for name, peer in self.peers.items():
            peer.ring.check()
            assert peer.suspected == peer.ring.suspected
            assert set(peer.ring.watched) == set(followers(self.layout, name))


TestRingMachine = RingMachine.TestCase
TestRingMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
