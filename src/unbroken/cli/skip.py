"""``unbroken skip``: list rows that cannot be read, and set them aside."""

from __future__ import annotations

from dataclasses import asdict, replace

import click

from unbroken.cli.command import command
from unbroken.cli.shared import ANSWER_DEADLINE_S, AS_JSON, NamedRun, answer, on_run
from unbroken.errors import Refused


@command(
    examples=[
        ("unbroken skip", "list the rows that are stuck, and why"),
        ("unbroken skip orders 4711", "set the rows of source orders in pulse 4711 aside, after a question"),
        ("unbroken skip orders 4711 shop --yes --json", "of the flow shop, for programs"),
    ]
)
@click.argument("source", required=False)
@click.argument("pulse", required=False, type=click.IntRange(1))
@on_run
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--wait", "wait_s", default=60.0, show_default=True, help="Seconds to wait for it.")
@AS_JSON
def skip(source: str | None, pulse: int | None, run: NamedRun, yes: bool, wait_s: float, as_json: bool) -> None:
    """List rows that cannot be read, or set those of one source and pulse aside.

    The segments that read the source wait for such rows; other sources continue. Skipped rows are never processed: a
    dead letter names their positions. It is refused if any node of the ingress has read them, or does not answer.
    """
    from unbroken.cli.progress import WaitDisplay
    from unbroken.observe.status.reader import StatusReader
    from unbroken.operations import skip as skipping

    if pulse is None and source is not None:
        run, source = replace(run, flow_name=source), None  # only a flow was named
    place = run.place().named()
    with StatusReader(place.zookeeper, place.flow, place.token(), ANSWER_DEADLINE_S) as reader:
        if source is None or pulse is None:
            found = skipping.stuck_rows(reader.read())
            lines = [
                f"{one.source} pulse {one.pulse} on {one.node}, for {one.seconds:.0f} s: {one.trouble or 'it is read'}"
                for one in found
            ]
            text = "\n".join(lines) or f"no rows of {place.flow} are stuck"
            answer(as_json, text, flow=place.flow, stuck=[asdict(one) for one in found])
            return
        question = f"set all rows of {source} in pulse {pulse} aside for good?"
        if not yes and not click.confirm(question, err=True):
            raise Refused("not confirmed, so nothing was done")
        with WaitDisplay("the nodes are asked") as waiting:
            skipping.skip(reader, source, pulse, wait_s, waiting.show)
    text = f"the rows of {source} in pulse {pulse} are skipped; a dead letter names their positions"
    answer(as_json, text, flow=place.flow, source=source, pulse=pulse)
