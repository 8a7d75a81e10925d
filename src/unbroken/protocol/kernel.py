"""The parts of a node that policies may build on."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.protocol.agenda import Agenda
from unbroken.protocol.ingress.seat import Advance
from unbroken.protocol.output.generation_switch import GenerationSwitch
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.output.sinks import Sinks
from unbroken.protocol.policy_set import Policies
from unbroken.protocol.repair.newcomers import Newcomers
from unbroken.protocol.replica.hosting import Hosting
from unbroken.protocol.replica.reports import Reports
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.surroundings import Surroundings


@dataclass(frozen=True)
class Kernel:
    """Active replication with pulses. The factory of a policy takes from it what the policy needs, and nothing else.

    ``policies`` is for what one policy wants to know of the others, which it does not know by name either.
    """

    around: Surroundings
    roster: Roster
    advance: Advance
    outboxes: Outboxes
    sinks: Sinks
    generation_switch: GenerationSwitch
    reports: Reports
    hosting: Hosting
    newcomers: Newcomers
    agenda: Agenda
    policies: Policies
