"""Which policies a flow uses, and which of them go together.

Active replication with pulses is the kernel, and goes with everything. Strategies, orderings and reconciliations of
different segments may differ; what is said here is about policies of one segment, or of the flow as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from unbroken.errors import UnbrokenError
from unbroken.protocol.registry import KERNEL, POLICIES, registered
from unbroken.protocol.values.layout import Topology

STRATEGIES = ("active-standby", "passive", "upstream", "sharing", "cluster")
ORDERINGS = ("leader", "bucket")
RECONCILIATIONS = ("fork", "redo", "undo")
GUARANTEES = ("at-most-once",)
NAMES = (*STRATEGIES, *ORDERINGS, *RECONCILIATIONS, *GUARANTEES)

_ONE_STRATEGY = "a segment has one strategy; segments of a flow may have different ones"
_REPLICAS_DIFFER = "its replicas do different things, and this one has replicas that do the same"
_WHOLE_COPIES = "a whole copy of the dataflow has active replicas and takes input from nobody else"
_NO_REPLICAS = "it needs replicas that process the same input"
_NUMBERED = "it counts on units that are numbered by pulses"
_ONE_WAY_BACK = "a segment has one way back to stable state; segments of a flow may have different ones"
_TWICE = "a result may come twice, tentative and stable"
_TURNS = "turns are agreed on with pulses that cut all sources together and number the units"


def _pairs() -> dict[frozenset[str], str]:
    """The reason for each pair that does not go together."""
    out: dict[frozenset[str], str] = {}

    def refuse(some: Iterable[str], others: Iterable[str], why: str) -> None:
        for one in some:
            for other in others:
                if one != other:
                    out.setdefault(frozenset({one, other}), why)

    own = ("active-standby", "passive", "upstream")
    refuse(("cluster",), (*own, "sharing", *ORDERINGS, *RECONCILIATIONS), _WHOLE_COPIES)
    refuse(("sharing",), ("active-standby",), _REPLICAS_DIFFER)
    refuse(own, own, _ONE_STRATEGY)
    refuse(("leader",), ("passive", "upstream", "sharing"), _NO_REPLICAS)
    refuse(("leader",), ("bucket", *RECONCILIATIONS), _NUMBERED)
    refuse(RECONCILIATIONS, ("passive", "upstream", "sharing"), _NO_REPLICAS)
    refuse(RECONCILIATIONS, RECONCILIATIONS, _ONE_WAY_BACK)
    refuse(RECONCILIATIONS, GUARANTEES, _TWICE)
    refuse(ORDERINGS, GUARANTEES, _TURNS)
    return out


_REFUSED = _pairs()


def why_not(one: str, other: str) -> str | None:
    """Why two policies do not go together; None if they do."""
    return _REFUSED.get(frozenset({one, other}))


def used(topology: Topology) -> frozenset[str]:
    """The policies that a flow asks for."""
    strategies = [topology.strategy(part) for part in topology.segments]
    found = {strategy.ha.value for strategy in strategies} - set(KERNEL)
    found |= {how.reconcile.value for how in topology.availability.values()}
    asked = {
        "sharing": any(strategy.shares for strategy in strategies),
        "cluster": topology.whole,
        "leader": bool(topology.led),
        "bucket": topology.bucketed,
        "at-most-once": topology.at_most_once,
    }
    found |= {name for name, given in asked.items() if given}
    return frozenset(found | {needed for name in found for needed in registered(name).needs})


def numbered(topology: Topology) -> bool:
    """Whether the units of a flow are numbered by pulses, so that every run has the same ones."""
    return all(registered(name).numbered for name in used(topology))


def separate_sources(topology: Topology) -> bool:
    """Whether sources are cut each by itself, so that their units do not count pulses."""
    return any(registered(name).separate for name in used(topology))


def copied_together(topology: Topology) -> bool:
    """Whether all shards of a node are copied at once."""
    return any(registered(name).together for name in used(topology))


def fixed_code(topology: Topology) -> tuple[str, str] | None:
    """Why the code of a flow cannot be replaced while it runs, and what to do instead; None if it can."""
    return next((found for name in sorted(used(topology)) if (found := registered(name).fixed) is not None), None)


def available(name: str) -> bool:
    """Whether a policy is part of this installation, with all that it needs."""
    return all(known in POLICIES for known in (name, *registered(name).needs))


def missing_policies(topology: Topology) -> list[str]:
    """The policies that a flow asks for and that are not part of this installation."""
    return sorted(name for name in used(topology) if not available(name))


def require_policies(topology: Topology) -> None:
    """Refuse a flow that asks for a policy which is not part of this installation."""
    missing = missing_policies(topology)
    if missing:
        raise UnbrokenError(
            f"the flow asks for a policy that is not installed: {', '.join(missing)}. Install it, or declare the flow "
            "without it."
        )
