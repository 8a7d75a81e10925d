"""What a person sees of a running flow in the terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from unbroken.connectors.sinks import Console as ConsoleSink

if TYPE_CHECKING:
    from unbroken.client import Subscription
    from unbroken.cluster.launcher import LocalCluster

LOOK_S = 1.0


def status_table(flow: str, states: list[dict[str, Any]]) -> Table:
    """Nodes, replicas, units and lag."""
    table = Table(title=flow)
    for column in ("node", "replica", "state", "units", "behind", "micro-batch"):
        table.add_column(column)
    for state in states:
        if state["state"] != "running":
            table.add_row(state["node"], "", state["state"], "", "", state.get("reason", ""))
            continue
        for replica in state["replicas"]:
            took = replica.get("duration_ms", {}).get("triggerExecution")
            table.add_row(
                state["node"],
                replica["replica"],
                replica["state"] if not replica["reason"] else f"stopped: {replica['reason']}",
                str(replica["produced"]),
                f"{replica['lag_units']} units",
                "" if took is None else f"{took} ms",
            )
        ingress = state.get("ingress")
        if ingress:
            role = "leads the pulse" if ingress["leading"] else "follows"
            pace = f"{ingress['period_ms']:.0f} ms pulse" if ingress["leading"] else ""
            behind = f"{ingress['in_flight']} in flight" if ingress["leading"] else ""
            table.add_row(state["node"], "ingress", role, str(ingress["pulse"]), behind, pace)
    return table


def follow(cluster: LocalCluster, out: Console) -> None:
    """Print what happens, and the rows of console sinks, until a bounded flow has ended."""
    consoles: list[tuple[ConsoleSink, Subscription]] = [
        (sink.connector, cluster.subscribe(name))
        for name, sink in cluster.flow.sinks.items()
        if isinstance(sink.connector, ConsoleSink)
    ]
    told: set[tuple[str, int, str]] = set()
    looked = 0.0
    try:
        while True:
            for console, subscription in consoles:
                result = subscription.next(0.05)
                if result is not None and result.table.num_rows:
                    out.print(console.render(result.header, result.table), highlight=False, markup=False)
            if time.monotonic() - looked < LOOK_S:
                if not consoles:
                    time.sleep(0.1)
                continue
            looked = time.monotonic()
            states = cluster.status()
            _tell(states, told, out)
            if _ended(cluster, states) and all(subscription.ended for _, subscription in consoles):
                out.print("the sources have ended and everything is delivered")
                return
    finally:
        for _, subscription in consoles:
            subscription.close()


def _tell(states: list[dict[str, Any]], told: set[tuple[str, int, str]], out: Console) -> None:
    for state in states:
        for entry in state.get("story", []):
            key = (state["node"], entry["time_ms"], entry["sentence"])
            if key not in told:
                told.add(key)
                when = time.strftime("%H:%M:%S", time.localtime(entry["time_ms"] / 1000))
                out.print(f"{when} {state['node']}: {entry['sentence']}", highlight=False, markup=False)


def _ended(cluster: LocalCluster, states: list[dict[str, Any]]) -> bool:
    """Whether the final pulse has passed every sink that nodes deliver to."""
    ends = [s["ingress"]["pulse"] for s in states if s.get("ingress") and s["ingress"]["ended"]]
    if not ends:
        return False
    delivered: dict[str, int] = {}
    for state in states:
        for stream, sink in state.get("sinks", {}).items():
            delivered[stream] = max(delivered.get(stream, 0), sink["delivered"])
    return all(count >= max(ends) for count in delivered.values())
