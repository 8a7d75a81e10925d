"""Words for notices about sinks and dead letters."""

from __future__ import annotations

from unbroken.observe.notices.words import Topic, Words
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.notices import sinks as n

_MAIL = StreamId(ShardId("alerts", 0), ShardId("mail", 0))
_PLACE = ".unbroken/shop/dead-letters/shop-4f1c"


def _uncertain(it: n.UnitsUncertain) -> str:
    one = it.first == it.last
    units = f"unit {it.first} of {it.stream} was" if one else f"units {it.first} to {it.last} of {it.stream} were"
    return f"{units} under way and may have been delivered; given up: at-most-once"


def _unwritten(it: n.DeadLettersUnwritten) -> str:
    return (
        f"dead letters cannot be written to {it.directory}: {it.detail}. Their rows are lost until that is possible; "
        "check space, permissions and links."
    )


SINKS = Topic(
    "Sinks",
    (
        Words(
            n.UnitSetAside,
            lambda it: (
                f"unit {it.unit} of {it.stream} is set aside, as its sink refuses it; its rows are dead letters: "
                f"{it.detail}"
            ),
            "it was refused as often as `refusals` allows; the next unit is delivered",
            "correct the segment or the sink; the rows are in the [dead letters](flows.md#bad-rows)",
            (n.UnitSetAside(_MAIL, 41, "ValueError: ..."),),
        ),
        Words(
            n.SinkStopped,
            lambda it: (
                f"sink {it.stream.consumer.part} stops, as it refuses unit {it.unit} of {it.stream}: {it.detail}"
            ),
            'it was declared with `on_refusal="stop"`: it takes nothing more in this run, and the flow continues',
            "correct the segment or the sink; then start the flow afresh, or [let the sink continue]"
            "(flows.md#bad-rows)",
            (n.SinkStopped(_MAIL, 41, "ValueError: ..."),),
        ),
        Words(
            n.SinkUnopened,
            lambda it: f"the sink of {it.stream} cannot be opened, retrying: {it.detail}",
            "its units are kept for it",
            "correct the cause that is named",
            (n.SinkUnopened(_MAIL, "ConnectionRefusedError: ..."),),
        ),
        Words(
            n.SinkOpened,
            lambda it: f"the sink of {it.stream} is open now",
            "it takes its units",
            "",
            (n.SinkOpened(_MAIL),),
        ),
        Words(
            n.DeadLettersUnwritten,
            _unwritten,
            "the flow continues without a trace of bad rows",
            "make space",
            (n.DeadLettersUnwritten(_PLACE, "[Errno 28] No space left on device"),),
        ),
        Words(
            n.DeadLettersWritten,
            lambda it: f"dead letters are written to {it.directory} again; {it.lost_rows} rows were lost",
            "it is over",
            "",
            (n.DeadLettersWritten(_PLACE, 12),),
        ),
        Words(
            n.UnitsUncertain,
            _uncertain,
            'with `guarantee="at-most-once"` ([guarantees](guarantees.md#at-most-once)): the replica that had the '
            "turn was lost; no process can know how far it was",
            "if it matters which of them arrived, look at the receiver",
            (n.UnitsUncertain(_MAIL, 41, 41), n.UnitsUncertain(_MAIL, 41, 44)),
        ),
        Words(
            n.UnitGivenUp,
            lambda it: (
                f"unit {it.unit} of {it.stream} is given up, as its sink failed with it and may have it: at-most-once "
                f"({it.detail})"
            ),
            "the same guarantee: the function raised; it is not called with the unit again",
            "correct the function or the system that it calls",
            (n.UnitGivenUp(_MAIL, 41, "TimeoutError: no answer"),),
        ),
    ),
    "A sink that fails is retried every 0.5 s; the reason is in the log of the node.",
)
