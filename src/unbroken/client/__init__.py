"""Clients of a running flow: read its results, push rows to its sources."""

from __future__ import annotations

from unbroken.client.push import PushClient
from unbroken.client.subscription import (
    Event,
    Reconciled,
    Result,
    Subscription,
    Undo,
    push_addresses,
    subscribe,
)

__all__ = ["Event", "PushClient", "Reconciled", "Result", "Subscription", "Undo", "push_addresses", "subscribe"]
