"""Whether a run that begins may write to the sinks of its flow: an earlier run may have left results in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from unbroken.errors import UnbrokenError

if TYPE_CHECKING:
    from unbroken.flow.dataflow import Dataflow

PERMISSION = "--add-to-sinks"


def refuse_occupied(flow: Dataflow) -> None:
    """Raise UnbrokenError if a sink holds results of an earlier run."""
    for name, taken in occupied(flow).items():
        raise UnbrokenError(
            f"sink {name}: {taken}. Move or delete it, let the sink write elsewhere, or give {PERMISSION} to add the "
            "results of a new run to it."
        )


def occupied(flow: Dataflow) -> Mapping[str, str]:
    """The sinks that hold results of an earlier run, and what each says of it."""
    found = {name: sink.connector.occupied() for name, sink in flow.sinks.items()}
    return {name: taken for name, taken in found.items() if taken is not None}


def runs_in_sinks(flow: Dataflow) -> frozenset[str]:
    """The runs whose results are in the sinks of a flow."""
    return frozenset(run for sink in flow.sinks.values() for run in sink.connector.runs())
