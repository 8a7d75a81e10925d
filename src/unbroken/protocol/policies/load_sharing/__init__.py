"""Load sharing: the shards of a segment stand in for each other."""

from __future__ import annotations

from unbroken.protocol.kernel import Kernel
from unbroken.protocol.policies.load_sharing.messages import Record
from unbroken.protocol.policies.load_sharing.records import LoadSharing
from unbroken.protocol.policies.load_sharing.stand_in import StandIn

VOCABULARY = (Record,)

PLACEMENT = StandIn()


def build(kernel: Kernel) -> LoadSharing:
    return LoadSharing(kernel.around, kernel.roster, kernel.policies)
