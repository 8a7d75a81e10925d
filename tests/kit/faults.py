"""Faults of the one vocabulary, done to a cluster that a test has started itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from unbroken.local.launcher import LocalCluster
from unbroken.testing.faults import Fault
from unbroken.testing.harness.harness import Harness
from unbroken.testing.harness.local import LocalDeployment
from unbroken.testing.injection.executor import Struck


def strike(cluster: LocalCluster, fault: Fault) -> Struck:
    """Do a fault that does not last, now; it has to hit something."""
    struck = Harness(LocalDeployment(lambda: cluster)).strike(fault)
    assert struck.done, struck
    return struck


@contextmanager
def during(cluster: LocalCluster, fault: Fault) -> Iterator[Struck]:
    """Do a fault that lasts, and end it at the end of the block."""
    with Harness(LocalDeployment(lambda: cluster)).during(fault) as struck:
        assert struck.done, struck
        yield struck
