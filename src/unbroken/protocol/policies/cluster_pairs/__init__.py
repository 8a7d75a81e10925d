"""Cluster pairs: whole copies of the dataflow that live and die as one."""

from __future__ import annotations

from unbroken.protocol.kernel import Kernel
from unbroken.protocol.policies.cluster_pairs.copies import CopyPlacement
from unbroken.protocol.policies.cluster_pairs.feeds import ClusterPairs

PLACEMENT = CopyPlacement()


def build(kernel: Kernel) -> ClusterPairs:
    return ClusterPairs(kernel.around)
