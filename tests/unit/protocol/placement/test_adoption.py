"""How a flow continues from the disks of its nodes when its documents are lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.topologies import chain
from unbroken.coordination.documents import DISK, DiskDocument
from unbroken.errors import Refused
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.placement.adoption import DiskReport, LogEnd, adopt
from unbroken.protocol.placement.controller import Situation, next_layout
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken.protocol.values.pause import Pause

TOPOLOGY = chain((2,))
DISKS = {"a": "disk-a", "b": "disk-b", "c": "disk-c"}
FIRST = chained_placement(TOPOLOGY, DISKS, "run")
END = LogEnd(3, 500)
SYNC = InSync(3, "a", frozenset({"a", "b"}), 7)


def report(node: str, layout: Layout = FIRST, sync: InSync = SYNC, log: LogEnd = END, **changed: object) -> DiskReport:
    held = dict.fromkeys(layout.hosted(node), 10)
    found = DiskReport(node, DISKS.get(node, f"disk-{node}"), layout.run, layout, sync, held, log)
    return replace(found, **changed)  # type: ignore[arg-type]


def everybody(**changed: object) -> list[DiskReport]:
    return [report(node, **changed) for node in DISKS]  # type: ignore[arg-type]


def test_what_all_disks_hold_continues_as_if_nothing_was_lost() -> None:
    decided = adopt(everybody())
    assert decided.layout == replace(FIRST, version=2) and decided.layout.run == "run"
    assert decided.sync == InSync(4, "a", frozenset({"a", "b"}), 8)


def test_running_nodes_keep_their_leader_and_its_term() -> None:
    decided = adopt(everybody(held={}, log=LogEnd(), running=True))
    assert decided.layout == replace(FIRST, version=2)
    assert decided.sync == replace(SYNC, version=8)


def test_the_newest_layout_and_in_sync_set_on_any_disk_count() -> None:
    """b was cut off while a replica of s0.0 was moved, and a went on as the ingress alone."""
    moved = FIRST.without([ReplicaId(ShardId("s0", 0), 0)]).with_joining(ShardId("s0", 0), "a")[0]
    alone = InSync(5, "a", frozenset({"a"}), 9)
    decided = adopt([report("a", moved, alone), report("b", log=LogEnd(3, 900)), report("c", moved)])
    assert decided.layout == replace(moved, version=moved.version + 1)
    assert decided.sync == InSync(6, "a", frozenset({"a"}), 10), "what b has more was never committed"


def test_the_most_advanced_log_of_the_members_leads() -> None:
    for ends, leader in (
        ({"a": LogEnd(3, 500), "b": LogEnd(3, 501)}, "b"),
        ({"a": LogEnd(2, 900), "b": LogEnd(3, 500)}, "b"),
        ({"a": LogEnd(3, 500), "b": LogEnd(3, 500)}, "a"),
    ):
        decided = adopt([report(node, log=ends.get(node, LogEnd())) for node in DISKS])
        assert (decided.sync.leader, decided.sync.members, decided.sync.term) == (leader, SYNC.members, 4)


def test_disks_of_different_runs_are_named() -> None:
    other = replace(report("c"), run="another", layout=replace(FIRST, run="another"))
    with pytest.raises(Refused, match=r"disk of c belongs to run another.*disks of a, b belong to run run"):
        adopt([report("a"), report("b"), other])


def test_no_disk_of_a_run_is_no_run() -> None:
    for reports in ([], [DiskReport("a", "fresh", "")]):
        with pytest.raises(Refused, match="start the nodes on their directories"):
            adopt(reports)


def test_a_missing_node_is_named_with_what_it_holds_and_may_be_left_out() -> None:
    present = [report("a"), report("b")]
    with pytest.raises(Refused, match=r"c with s0.0#1, s0.1#0.*--without c"):
        adopt(present)
    decided = adopt(present, without=["c"])
    assert set(decided.layout.placement.values()) == {"a", "b"}
    assert [str(replica) for replica in decided.lost] == ["s0.0#1", "s0.1#0"]


def test_a_node_with_another_disk_is_missing() -> None:
    with pytest.raises(Refused, match="c with"):
        adopt([report("a"), report("b"), replace(report("c"), disk="replaced")])


def test_a_shard_that_is_on_no_disk_is_named() -> None:
    held = {node: {r: 1 for r in FIRST.hosted(node) if r.shard != ShardId("s0", 1)} for node in DISKS}
    with pytest.raises(Refused, match=r"no disk here holds the state of s0\.1"):
        adopt([report(node, held=held[node]) for node in DISKS])


def test_if_no_member_of_the_ingress_is_left_the_best_log_is_taken() -> None:
    layout, newcomer = FIRST.without([ReplicaId(INGRESS, 1)]).with_joining(INGRESS, "c")
    layout = layout.with_full([newcomer])
    only_a = InSync(4, "a", frozenset({"a"}), 8)
    decided = adopt([report("b", layout, only_a), report("c", layout, only_a)], without=["a"])
    assert decided.sync == InSync(5, "c", frozenset({"c"}), 9)


def test_orders_that_were_in_zookeeper_are_named() -> None:
    """A replica that is no longer in the layout may have been ahead of all that are, and its orders are on no disk."""
    ahead = FIRST.without([ReplicaId(ShardId("s0", 0), 0)])
    for reports in (
        everybody(orders_lost=("s0",)),
        [report("a", ahead, orders_lost=("s0",)), report("b", ahead), report("c", ahead)],
        everybody(orders_lost=("s0",), running=True),
    ):
        with pytest.raises(Refused, match="orders of the leaders of s0 were in ZooKeeper"):
            adopt(reports)
    with pytest.raises(Refused, match="orders of the leaders"):
        adopt(everybody(orders_lost=("s0",)), without=["c"])


def test_a_pause_and_code_that_is_being_prepared_stay() -> None:
    layout = replace(FIRST, pause=Pause(5, "moving"), generations=(1, 2), draining=frozenset({"c"}))
    assert adopt(everybody(layout=layout)).layout == replace(layout, version=2)


def test_a_report_is_the_same_after_its_journey() -> None:
    for each in (*everybody(), DiskReport("d", "fresh", ""), report("a", running=True, orders_lost=("s0", "s1"))):
        document = DiskDocument(each, None)
        assert DISK.decode(DISK.encode(document)) == document


@st.composite
def histories(draw: st.DrawFn) -> tuple[Layout, list[DiskReport]]:
    """Disks that have each seen some beginning of the same history of layouts and in-sync sets."""
    shards = draw(st.integers(1, 3))
    names = "abcd"[: draw(st.integers(2, 4))]
    topology = chain((shards,))
    layouts = [chained_placement(topology, {name: f"disk-{name}" for name in names}, "run")]
    hosts = sorted(layouts[0].nodes_of(INGRESS))
    syncs = [InSync(1, hosts[0], frozenset(hosts), 0)]
    for version in range(draw(st.integers(0, 6))):
        shard = draw(st.sampled_from(topology.placed_shards))
        free = sorted(set(names) - set(layouts[-1].nodes_of(shard)))
        if free:
            layout, replica = layouts[-1].with_joining(shard, draw(st.sampled_from(free)))
            layouts.append(layout.with_full([replica]) if draw(st.booleans()) else layout)
        elif len(layouts[-1].full(shard)) > 1 and shard != INGRESS:
            layouts.append(layouts[-1].without([min(layouts[-1].full(shard))]))
        members = draw(st.sets(st.sampled_from(hosts), min_size=1))
        syncs.append(InSync(version + 2, min(members), frozenset(members), version + 1))
    newest, sync = layouts[-1], syncs[-1]
    reports = []
    knows = draw(st.sampled_from(sorted(names)))
    for name in names:
        # A member of the newest set has it on its disk, because it was written before it was acted on.
        own_sync = sync if name in sync.members else draw(st.sampled_from(syncs))
        own_layout = newest if name == knows else draw(st.sampled_from(layouts))
        held = {replica: draw(st.integers(0, 9)) for replica in newest.hosted(name) if draw(st.integers(0, 4))}
        held |= {replica: 1 for replica in layouts[0].hosted(name) if draw(st.booleans())}
        end = LogEnd(draw(st.integers(1, sync.term)), draw(st.integers(0, 99)))
        running = draw(st.integers(0, 5)) == 0
        reports.append(DiskReport(name, f"disk-{name}", "run", own_layout, own_sync, held, end, running))
    return newest, draw(st.permutations(reports))


@settings(max_examples=50, deadline=None)
@given(histories(), st.data())
def test_lost_orders_are_never_adopted(history: tuple[Layout, list[DiskReport]], data: st.DataObject) -> None:
    """Whatever the disks hold, and whichever of the nodes are present and know of them."""
    _, reports = history
    known = data.draw(st.integers(0, len(reports) - 1))
    told = [replace(each, orders_lost=("s0",)) if at == known else each for at, each in enumerate(reports)]
    absent = data.draw(st.sets(st.sampled_from([each.node for each in reports if each != reports[known]] or [""])))
    with pytest.raises(Refused, match="orders of the leaders of s0"):
        adopt([each for each in told if each.node not in absent], without=absent)


@settings(max_examples=200, deadline=None)
@given(histories())
def test_nothing_that_is_on_a_disk_is_given_up(history: tuple[Layout, list[DiskReport]]) -> None:
    newest, reports = history
    disks = {each.node: each for each in reports}
    sync = max((each.sync for each in reports if each.sync is not None), key=lambda each: each.term)
    try:
        decided = adopt(reports)
    except Refused as refused:
        assert "no disk here holds the state" in str(refused)
        return
    decided.layout.check()
    assert decided.layout.run == "run" and decided.layout.version == newest.version + 1
    for replica, node in newest.placement.items():
        kept = decided.layout.placement.get(replica)
        if replica in (disks[node].held or {}) or disks[node].running:
            assert kept == node, "a replica that is on its disk keeps its place"
        assert kept in (node, None) and decided.layout.next_index[replica.shard] > replica.index
    for shard in {replica.shard for replica in newest.placement}:
        assert decided.layout.counted(shard) - decided.layout.joining
    hosts = set(decided.layout.nodes_of(INGRESS))
    if sync.members & hosts:
        assert decided.sync.members == sync.members & hosts
        if not all(disks[node].running for node in decided.sync.members) or decided.sync.members != sync.members:
            best = max(disks[node].log for node in decided.sync.members)
            assert disks[decided.sync.leader].log == best, "the most advanced log of the members leads"
            assert decided.sync.term > sync.term
    assert decided.sync.leader in decided.sync.members
    assert decided.sync.version > max(each.sync.version for each in reports if each.sync is not None)
    # What was not on a disk is rebuilt from what was.
    present = {node: each.disk for node, each in disks.items()}
    topology = chain((max(replica.shard.index for replica in newest.placement) + 1,))
    following = next_layout(topology, Situation(0, present, in_sync=decided.sync.members), decided.layout, 9)
    after = decided.layout if following is None else following.layout
    for shard in topology.placed_shards:
        assert after.counted(shard)
