"""Bucket ordering: the sources of a node, each cut by its own event time."""

from __future__ import annotations

from unbroken.node.policies.bucket.feeder import BucketFeeder

FEEDER = BucketFeeder
