"""Words for notices about sources and the ingress."""

from __future__ import annotations

from datetime import UTC, datetime

from unbroken.observe.notices.words import Topic, Words, names
from unbroken.protocol.values.notices import ingress as n

_FILES = (
    "Files that were agreed cannot be read in /data/in: a.json does not exist. Restore them, or set their rows aside "
    "with `unbroken skip`."
)


def _handed_over(it: n.LeadHandedOver) -> str:
    return (
        f"the ingress log of {it.node} ends with entry {it.last}, that of {it.successor} with {it.successor_last}: "
        f"{it.node} hands the lead to {it.successor} and copies the log from it"
    )


def _entries_lost(it: n.LogEntriesLost) -> str:
    return (
        f"{it.node} has lost entries of the ingress log: it ends with {it.last}, and {it.committed} is committed. The "
        f"ingress continues without {it.node}, which copies the log."
    )


def _contradicted(it: n.LogContradicted) -> str:
    return (
        f"the ingress log of {it.leader} differs from what {it.node} has committed: entry {it.entry} is of term "
        f"{it.term} instead of {it.committed_term}. {it.node} continues without {it.leader}."
    )


def _clock(it: n.ClockOff) -> str:
    stands = f"{abs(it.offset_s):.1f} s {'ahead of' if it.offset_s > 0 else 'behind'}"
    return (
        f"the clock of {it.node} is {stands} the time of the flow, which follows it slowly, by {it.slew * 100:.0f} s "
        "in 100 s. Correct the clock of the node."
    )


def _leapt(it: n.CutTimeLeapt) -> str:
    return (
        f"the first pulse of {it.node} is cut at {_time(it.to_ms)}, by its clock; the last one of the log was cut at "
        f"{_time(it.from_ms)}. Cut times follow this clock from here on: if the flow was not stopped in between, "
        "correct the clock of the node."
    )


def _time(at_ms: int) -> str:
    """A time in UTC, to the second; milliseconds, if a clock is so wrong that there is no such year."""
    try:
        return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


SOURCES = Topic(
    "Sources",
    (
        Words(
            n.SourceUnreadable,
            lambda it: f"source {it.source} cannot be read on {it.node}, the others continue: {it.detail}",
            "only this source gives nothing. If files are named: the node does not see a file, or all of its bytes, "
            "that another one has taken",
            "restore the source; its rows follow then. For files, see [a file that was "
            "deleted](operations.md#a-file-that-was-deleted)",
            (
                n.SourceUnreadable("orders", "node-1", "no broker answers"),
                n.SourceUnreadable("orders", "node-1", _FILES),
            ),
        ),
        Words(
            n.SourceReadable,
            lambda it: f"source {it.source} is read again on {it.node}",
            "it is available again",
            "",
            (n.SourceReadable("orders", "node-1"),),
        ),
        Words(
            n.RowsSetAside,
            lambda it: f"rows of source {it.source} are set aside, see its dead letters: {it.detail}",
            "they make the code of the source fail, on every node alike",
            "the [dead letter](flows.md#bad-rows) names their positions",
            (n.RowsSetAside("orders", "InvalidOperation"),),
        ),
        Words(
            n.RowsSkipped,
            lambda it: f"rows of source {it.source} in pulse {it.pulse} are skipped, see its dead letters: {it.detail}",
            "an operator ran `unbroken skip`",
            "",
            (n.RowsSkipped("orders", 4711, "no route to host"),),
        ),
        Words(
            n.SourcesUnanswered,
            lambda it: f"sources cannot be cut on {it.node}, a pulse has no rows: {it.detail}",
            "the sources could not be asked; the next pulse asks them again",
            "if it repeats, look at the log of the node",
            (n.SourcesUnanswered("node-1", "TimeoutError: ..."),),
        ),
        Words(
            n.PushMisdirected,
            lambda it: f"rows pushed to {it.node}, which does not lead the ingress; the producer will resend",
            "a producer asked the wrong node at the wrong moment; it is refused and resends the batch",
            "",
            (n.PushMisdirected("node-2"),),
        ),
    ),
)

INGRESS = Topic(
    "The ingress",
    (
        Words(
            n.IngressLed,
            lambda it: f"{it.node} leads the ingress (term {it.term})",
            "the node that decided about pulses is gone; this one decides from here on",
            "",
            (n.IngressLed("node-2", 3),),
        ),
        Words(
            n.InSyncProposed,
            lambda it: f"{it.node} asks for an ingress of {names(it.members)}",
            "it wants to continue without a member that it does not reach, or with one that has caught up; ZooKeeper "
            "decides",
            "if it repeats, look at the network between these nodes",
            (n.InSyncProposed("node-1", ("node-1", "node-3")),),
        ),
        Words(
            n.IngressFailing,
            lambda it: f"the ingress on {it.node} fails, retrying: {it.detail}",
            "it cannot write units or read its log; the other nodes of the ingress continue",
            "look at its disk; nothing is lost",
            (n.IngressFailing("node-1", "[Errno 5] Input/output error"),),
        ),
        Words(
            n.IngressJobSetAside,
            lambda it: f"a job of the ingress on {it.node} is set aside: {it.detail}",
            "it failed several times in the same way, for a reason that lies in the data",
            "report it, with the log of the node",
            (n.IngressJobSetAside("node-1", "ValueError: ..."),),
        ),
        Words(
            n.EntrySetAside,
            lambda it: f"entry {it.entry} of the ingress log is set aside: {it.detail}",
            "no node can read it",
            "report it",
            (n.EntrySetAside(4711, "An entry of the ingress log is not a pushed batch: ..."),),
        ),
        Words(
            n.IngressLogWaits,
            lambda it: f"the ingress log waits, for at most {it.longest_s:g} s: {it.detail}",
            "the node has reached its limit of open files; it ends if that lasts",
            "raise the limit (`ulimit -n`, `LimitNOFILE`); look for strangers that hold connections",
            (n.IngressLogWaits(60, "Too many open files"),),
        ),
        Words(
            n.IngressDiskFailed,
            lambda it: (
                f"the ingress on {it.node} cannot write to its disk ({it.detail}); the node ends, others continue"
            ),
            "the log of the ingress needs the disk",
            "make room; `unbroken run` or systemd restarts the node",
            (n.IngressDiskFailed("node-2", "[Errno 28] No space left on device"),),
        ),
        Words(
            n.IngressUnopened,
            lambda it: f"the ingress on {it.node} cannot be opened ({it.detail}); the node ends, others continue",
            "its log, or a source, is not as it has to be",
            "look for the cause in the log of the node; `unbroken run` or systemd restarts it",
            (n.IngressUnopened("node-2", "entry 4711 is missing"),),
        ),
        Words(
            n.IngressOverwhelmed,
            lambda it: f"the ingress on {it.node} is {it.entries} entries behind its log; the node ends",
            "the sources are no longer read",
            "look in its log for the source that hangs",
            (n.IngressOverwhelmed("node-1", 10_000),),
        ),
        Words(
            n.LogEntriesLost,
            _entries_lost,
            'a disk has lost the end of the log: with `durability="memory"`, or because it reported writes that it '
            "had not made",
            'nothing. With `durability="sync"`, check the disk',
            (n.LogEntriesLost("node-2", 4700, 4711),),
        ),
        Words(
            n.LeadHandedOver,
            _handed_over,
            "the same on the leader: the member with the longest log leads instead",
            "the same",
            (n.LeadHandedOver("node-1", 4700, "node-2", 4711),),
        ),
        Words(
            n.LogContradicted,
            _contradicted,
            "the disks of the ingress have committed different entries; the older entry counts",
            "report it, with the logs of both nodes. Check the disk of the leader",
            (n.LogContradicted("node-2", "node-1", 4711, 4, 3),),
        ),
    ),
)

CLOCKS = Topic(
    "Clocks",
    (
        Words(
            n.ClockOff,
            _clock,
            "the clock was set, or differs from that of the node that led the ingress before. Cut times do not jump",
            "correct the clock (NTP). If the clock is right and the flow behind it: restart all nodes of the ingress "
            "at once, or wait",
            (n.ClockOff("node-1", 3600.0, 0.1), n.ClockOff("node-1", -12.0, 0.1)),
        ),
        Words(
            n.CutTimeLeapt,
            _leapt,
            "all nodes of the ingress were restarted, and the first cut is more than a minute after the last one. No "
            "process knows for how long none ran, so the clock is trusted",
            "nothing, if the flow was stopped for that long. If not, the clock is wrong: correct it (NTP); cut times "
            "never go back, and pass at nine tenths of their pace until the right time has caught up; see "
            "[clocks](operations.md#clocks)",
            (n.CutTimeLeapt("node-1", 1_772_366_400_000, 1_772_370_000_000),),
        ),
        Words(
            n.ClockAgrees,
            lambda it: f"the clock of {it.node} agrees with the time of the flow again",
            "it is less than half a second off",
            "",
            (n.ClockAgrees("node-1"),),
        ),
    ),
)
