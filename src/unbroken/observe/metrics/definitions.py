"""Every metric of a node: name, kind, labels and meaning.

The collector, the reference in ``docs/operations.md``, the dashboard and the alert rules are all held against this
list. Names and units follow the conventions of Prometheus: seconds and bytes, counters end in ``_total``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NODE = ("flow", "node")
SHARD = (*NODE, "shard")
REPLICA = (*SHARD, "replica")
SINK = (*SHARD, "sink")


@dataclass(frozen=True)
class Definition:
    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    help: str


def _gauge(name: str, labels: tuple[str, ...], meaning: str) -> Definition:
    return Definition(f"unbroken_{name}", "gauge", labels, meaning)


def _counter(name: str, labels: tuple[str, ...], meaning: str) -> Definition:
    return Definition(f"unbroken_{name}_total", "counter", labels, meaning)


DEFINITIONS = (
    # Results
    _gauge(
        "output_gap_seconds",
        REPLICA,
        "Time since a replica that feeds a sink last got further; the least of a shard's replicas is the shard's gap.",
    ),
    _gauge(
        "result_latency_seconds",
        REPLICA,
        "From the cut of the newest result's pulse at the sources until the replica had it, by the clocks of the two.",
    ),
    _counter("units_produced", REPLICA, "Units of results that a replica has produced since the flow began."),
    _counter("units_committed", REPLICA, "Micro-batches that are in a replica's checkpoint since the flow began."),
    _counter("sink_units_delivered", SINK, "Units of a shard that a sink has, whichever replica brought them."),
    _counter("sink_units_written", SINK, "Units of a shard that this node put into a sink since it was started."),
    _gauge("sink_wait_seconds", SINK, "How long the oldest result that a sink does not have yet has been ready here."),
    _gauge("sink_busy_seconds", SINK, "How long a sink has not come back from one attempt to hand it a unit."),
    _gauge("sink_stopped", SINK, "1 if a sink has stopped at a unit that it refuses, because it was declared to."),
    _counter("units_set_aside", NODE, "Units that their sink refuses and whose rows are dead letters."),
    _counter("units_given_up", NODE, "Units that a sink may lack, where the guarantee is at most once."),
    _counter("messages_refused", NODE, "Messages, units and questions of peers that make no sense, or are outdated."),
    # Redundancy
    _gauge("redundancy_degraded", SHARD, "1 while fewer replicas of a shard count and can be reached than are wanted."),
    _gauge(
        "redundancy_degraded_since_timestamp_seconds",
        SHARD,
        "Since when the controller has found a shard short of replicas; absent while it has not.",
    ),
    _gauge(
        "shard_replicas",
        (*SHARD, "state"),
        "Replicas of a shard: wanted, full (they count), reachable (full, and heard of here) and joining.",
    ),
    _counter(
        "failovers",
        (*NODE, "cause"),
        "Lost replicas that are gone on without, and leads of the ingress taken over; counted where that was decided.",
    ),
    _counter("recoveries", NODE, "Times that a shard was redundant again; counted by the controller."),
    _counter(
        "recovery_seconds",
        NODE,
        "Time for which shards were short of replicas until they were redundant again; counted when they are.",
    ),
    _gauge("replica_state", (*REPLICA, "state"), "1 for what a replica is: active, stands by, stopped, joining, held."),
    _gauge("copy_bytes", (*REPLICA, "extent"), "State of a joining replica: bytes that are here (copied), and in all."),
    # Lag
    _gauge("replica_lag_seconds", REPLICA, "Age of the oldest input of a replica that is here and not processed yet."),
    _gauge("replica_lag_units", REPLICA, "Pulses by which a replica is behind the newest input on its node."),
    _gauge(
        "micro_batch_seconds",
        (*REPLICA, "part"),
        "The last micro-batch, by what it was spent on; the sum is all of it.",
    ),
    _gauge("micro_batch_input_rows", REPLICA, "Rows that the last micro-batch read."),
    _gauge("state_rows_updated", REPLICA, "Rows of the state that the last micro-batch changed."),
    _gauge("state_memory_bytes", REPLICA, "Memory that the state of a replica's query takes."),
    _gauge("state_file_bytes", REPLICA, "Size of the files of a replica's state, as of its last snapshot by Spark."),
    _gauge("outbox_units", (*SHARD, "consumer"), "Units that are kept for a consumer which may need them."),
    # Units and bytes
    _counter("units_accepted", NODE, "Units that came in and were the first copy of their number."),
    _counter("duplicates_dropped", NODE, "Units that came in and were there already."),
    _counter("units_refused", NODE, "Units that came in too far ahead of what is processed; they are sent again."),
    _counter("divergences", NODE, "Times that two copies of a unit were found to differ by this node."),
    _counter("bytes_received", (*NODE, "purpose"), "Bytes of units and state that came in, by what they are good for."),
    _counter("bytes_sent", (*NODE, "purpose"), "Bytes of messages that went out, by what they are good for."),
    # Consistency
    _gauge("consistency_state", (*REPLICA, "state"), "1 for how a replica's results stand: stable, up-failure, ..."),
    _gauge("tentative_units_pending", REPLICA, "Units given out as tentative that a stable one has not replaced yet."),
    _counter("tentative_units", NODE, "Units of tentative results that were given out."),
    _counter("tentative_rows", NODE, "Rows of tentative results that were given out."),
    # Sources
    _gauge("ingress_leading", NODE, "1 on the node that cuts the sources, 0 on other nodes of the ingress."),
    _gauge("ingress_in_sync_members", NODE, "Nodes of the ingress that have every committed entry of its log."),
    _gauge("paused", NODE, "1 while somebody has paused the flow, so that its sources are not read."),
    _gauge("pulse_period_seconds", NODE, "Time between two pulses, as the leader of the ingress has adapted it."),
    _gauge("pulses_in_flight", NODE, "Pulses that are cut and that some shard has not processed yet by any replica."),
    _counter("pulses", NODE, "Pulses that the ingress has cut since the flow began."),
    _counter("source_rows", NODE, "Rows that were taken from the sources since the flow began."),
    _counter("source_rows_bad", NODE, "Rows that could not be read and are kept as dead letters."),
    _counter("source_rows_late", NODE, "Rows that came after their bucket of event time was closed."),
    _gauge(
        "ingress_clock_offset_seconds",
        NODE,
        "How far the clock of the machine is ahead of the time by which pulses are cut; it is followed slowly.",
    ),
    _gauge("source_unreached_seconds", (*NODE, "source"), "How long a source could not be asked while others went on."),
    _gauge("source_asking_seconds", (*NODE, "source"), "How long a source has not said how far it can be read."),
    _gauge("source_stuck_seconds", (*NODE, "source"), "How long the rows of a committed pulse of a source wait."),
    _gauge("ingress_busy_seconds", NODE, "How long the thread of the ingress has been at one job."),
    _gauge("ingress_log_busy_seconds", NODE, "How long the disk has been at the entries that it was given last."),
    _counter(
        "ingress_entries_set_aside",
        NODE,
        "Entries of the ingress log, and jobs of the ingress, that the node could not carry out since it started.",
    ),
    _counter("dead_letters_lost", NODE, "Rows that could not be written to the dead letters since the node started."),
    _counter("dead_letters_removed", NODE, "Files of dead letters that were removed because of size or age."),
    # The node
    _gauge("node_info", (*NODE, "version"), "1, with the version of Unbroken that the node runs."),
    _gauge("node_running", NODE, "1 when the queries of a node are started, 0 before."),
    _gauge("node_links", NODE, "Other nodes that this one is linked to."),
    _counter("spans_exported", NODE, "Spans of traces that were handed on; only where traces are asked for."),
    _counter(
        "spans_dropped",
        (*NODE, "cause"),
        "Parts of traces that are lost: queue_full (there was no room for what happened), export_failed (nobody took "
        "the spans).",
    ),
    _gauge("zookeeper_connected", NODE, "1 while a node has its connection to ZooKeeper."),
    _gauge("controller", NODE, "1 on the node that is elected to keep the layout."),
    _gauge("layout_version", NODE, "Version of the layout that a node works by."),
    _gauge("code_generation", NODE, "Generation of the flow's code; an upgrade makes it grow."),
)
"""In the order in which they are shown."""

BY_NAME = {definition.name: definition for definition in DEFINITIONS}


def reference() -> str:
    """The table of all metrics, in Markdown."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for one in DEFINITIONS:
        more = [label for label in one.labels if label not in NODE]
        labels = ", ".join(f"`{label}`" for label in more)
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.help} |")
    return "\n".join(lines) + "\n"
