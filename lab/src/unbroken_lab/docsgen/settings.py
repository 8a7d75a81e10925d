"""The reference of settings: type, default, range and meaning from the model, and what a change of each does.

The groups and the words about changes are kept here, beside the code that makes the page, and every setting has to have
both: a setting without is a failure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo

from unbroken.errors import require
from unbroken.flow.settings import Settings, instant, size_in_bytes
from unbroken.quantities import milliseconds
from unbroken_lab.docsgen.marks import table

COLUMNS = ("setting", "default", "values", "meaning", "when it is changed")
_UNITS = (
    (86_400_000, "day", "days"),
    (3_600_000, "h", "h"),
    (60_000, "min", "min"),
    (1_000, "s", "s"),
    (1, "ms", "ms"),
)
_SIZES = ((1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "KB"))


@dataclass(frozen=True)
class Group:
    """Settings that belong together, and for each what follows from another value."""

    title: str
    changes: dict[str, str]


GROUPS = (
    Group(
        "Nodes",
        {
            "nodes": "More spread the same replicas; those beyond the first layout are used when others are lost.",
            "standbys": "Each costs the memory of a node, and saves the start of Spark when a replica is built again.",
            "node_memory": "More for large state and large units.",
            "node_cores": "More tasks of a node's queries run at the same time.",
            "partitions": "A flow that has state keeps the number it was started with. Prefer `shards`.",
            "jvm": "`throughput` pays on many cores at saturation, `small` everywhere else.",
            "spark": "They come last, so they can undo what Unbroken sets. Do not touch state stores and checkpoints.",
        },
    ),
    Group(
        "Pulses",
        {
            "pulse_min": "Smaller: fresher results and more micro-batches. Below what the slowest segment takes it has "
            "no effect, because pulses [adapt](architecture.md#adaptive-pulse).",
            "pulse_start": "Only the first seconds of a run are different.",
            "pulse_max": "Larger: a flow that is overloaded takes bigger units before it falls behind.",
            "in_flight_slack": "More smooths segments of uneven speed, and every result is later by as much.",
            "gate_wait": "Longer: Spark asks less often while there is no input. Results do not wait for it.",
        },
    ),
    Group(
        "Delivery",
        {
            "guarantee": "See [guarantees](guarantees.md). To or from `at-most-once`: with a fresh start.",
            "durability": "At the next start. `memory` saves a few milliseconds per pulse and push; see "
            "[the ingress log](architecture.md#forced-to-disk).",
            "hedge": "Longer: fewer units are written twice by replicas at the same time; a lost writer is made up for "
            "later by as much.",
            "delivery": "`single` saves bytes, and the loss of a producer is noticed as a pause of `patience` or less "
            "([recovery](recovery.md#delivery-all-at-once-or-one-at-a-time)).",
            "patience": "Shorter: a silent producer is left sooner, also one that is only slow.",
            "refusals": "More: a sink that is mended in time loses nothing; its units wait for longer.",
            "dead_letter_bytes": "More: longer traces of bad rows, on the disk of every machine.",
            "dead_letter_age": "Longer: the same.",
            "client_retain": "More: subscribers may come or come back later; nodes keep as many units on disk.",
            "pairs": "A [baseline to compare with](recovery.md#whole-copies-as-a-baseline); with a fresh start.",
        },
    ),
    Group(
        "Recovery",
        {
            "transfers": "More: redundancy is back sooner, and more of the network and disks goes into it.",
            "transfer_rate": "Higher: redundancy is back sooner, and results may feel it.",
            "catch_up_lag": "More: a newcomer counts sooner, and is further behind when it has to stand in.",
            "claim_units": "More: a slow replica has longer to catch up, on the disks of its producers.",
            "claim_bytes": "The same in bytes; whichever is reached first.",
            "ack_every": "More: fewer messages, and more units to process again after a loss.",
            "snapshots": "With one, shards survive the loss of all their disks; see [recovery](recovery.md#snapshots).",
            "snapshot_every": "Shorter: less to process again after such a loss, and more to write.",
            "return_grace": "Longer: a node that is slow to start again is waited for instead of replaced.",
        },
    ),
    Group(
        "Noticing losses",
        {
            "heartbeat": "Shorter: more messages. At most half of `link_timeout`.",
            "link_timeout": "Shorter: a frozen ingress node holds pulses up for less time, and a pause of the machine "
            "is taken for a loss sooner.",
            "ring_period": "Shorter: losses are suspected sooner, at the price of messages.",
            "ring_misses": "Fewer: the same, at the price of wrong suspicions.",
            "session_timeout": "Shorter: lost replicas are replaced sooner, and a node that pauses as long is lost.",
        },
    ),
    Group(
        "Orderings",
        {
            "order_log": "Orders are not moved to another log: with a fresh start. See [orderings](ordering.md).",
            "order_log_options": "At the next start.",
            "order_settle": "Longer: replicas wait less often for units that were ordered too soon; latency grows.",
            "order_silence": "Shorter: a frozen leader is replaced sooner, and a busy one for nothing.",
            "bucket": "Units are numbered by it: with a fresh start. See [buckets](ordering.md#event-time-buckets).",
            "bucket_origin": "Units are numbered from it: with a fresh start.",
        },
    ),
    Group(
        "Watching",
        {
            "metrics_port": "See [metrics](operations.md).",
            "traces": "Smaller: more pulses are traced, and each of them costs a little.",
        },
    ),
)


def settings() -> str:
    """All settings in their groups, as tables."""
    known = {name for group in GROUPS for name in group.changes}
    require(known == set(Settings.model_fields), f"settings without a group: {set(Settings.model_fields) ^ known}")
    parts = []
    for group in GROUPS:
        rows = [_row(name, Settings.model_fields[name], change) for name, change in group.changes.items()]
        parts.append(f"## {group.title}\n\n{table(COLUMNS, rows)}")
    return "\n".join(parts)


def _row(name: str, field: FieldInfo, change: str) -> tuple[str, ...]:
    kind, shown = _kind(field)
    default = field.get_default(call_default_factory=True)
    meaning = _code(str(field.description))
    values = ": ".join(part for part in (kind, _range(field, shown)) if part)
    return f"`{name}`", _default(default, shown), values, meaning, change


def _kind(field: FieldInfo) -> tuple[str, Any]:
    """What is written for a value, and how a number of the model is shown."""
    readers = {getattr(part, "func", None) for part in field.metadata}
    text = str(field.annotation)
    if milliseconds in readers or "milliseconds" in text:
        return "duration", _duration
    if size_in_bytes in readers:
        return "size", _size
    if instant in readers or "instant" in text:
        return "point in time", str
    if _choices(field):
        return "", str
    if "Mapping" in text:
        return "mapping", str
    return ("number", "{:,}".format) if "int" in text else ("text", str)


def _default(value: Any, shown: Any) -> str:
    if value is None or value == {}:
        return "none"
    return f'`"{value}"`' if isinstance(value, str) else str(shown(value))


def _range(field: FieldInfo, shown: Any) -> str:
    choices = _choices(field)
    if choices:
        return ", ".join(f'`"{choice}"`' for choice in choices)
    least = next((part.ge for part in field.metadata if hasattr(part, "ge")), None)
    most = next((part.le for part in field.metadata if hasattr(part, "le")), None)
    if least is None:
        return ""
    return f"from {shown(least)}" if most is None else f"{shown(least)} to {shown(most)}"


def _choices(field: FieldInfo) -> list[str]:
    """The words that a setting can be, if its pattern is a list of words."""
    pattern = next((part.pattern for part in field.metadata if getattr(part, "pattern", None)), "")
    found = re.fullmatch(r"\^\(([a-z|-]+)\)\$", pattern)
    return [] if found is None else found[1].split("|")


def _duration(ms: float) -> str:
    if not ms:
        return "0"
    for size, one, many in _UNITS:
        if ms >= size and ms % size == 0:
            count = ms / size
            return f"{count:g} {one if count == 1 else many}"
    return f"{ms:g} ms"


def _size(count: float) -> str:
    for size, name in _SIZES:
        if count >= size and count % size == 0:
            return f"{count / size:g} {name}"
    return f"{count:g} bytes"


def _code(text: str) -> str:
    """Values that are quoted in a description are set as code."""
    return re.sub(r"(?<!\w)'([^']+)'(?!\w)", r"`\1`", text)
