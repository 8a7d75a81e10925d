"""The ingress of a real node: its log and its units in directories, its workers threads."""

from __future__ import annotations

from functools import partial

from unbroken.connectors.dead_letters import DeadLetters
from unbroken.flow.dataflow import Dataflow
from unbroken.node.ingress.feeder import open_feeder
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.ingress.service import IngressService
from unbroken.node.ingress.surroundings import IngressGround, IngressNode
from unbroken.node.ingress.unit_writer import UnitWriter
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.programs import Programs
from unbroken.node.workers import ThreadWorker
from unbroken.protocol.values.ids import ReplicaId


def open_ingress(
    node: IngressNode, replica: ReplicaId, flow: Dataflow, programs: Programs, dirs: ReplicaDirs, letters: DeadLetters
) -> IngressService:
    """The ingress of a node, which begins with what the directory of ``replica`` holds when it is started."""
    units = UnitWriter(programs.consumers, dirs.store, partial(dirs.store.outbox_path, replica))
    ground = IngressGround(
        open_log=partial(IngressLogFile, dirs.ingress_log(replica)),
        open_feeder=partial(open_feeder, flow, units, letters),
        tidy=letters.tidy,
        forced=flow.settings.durability == "sync",
        jobs=ThreadWorker("ingress"),
        disk=ThreadWorker("ingress-log"),
    )
    return IngressService(node, replica, ground)
