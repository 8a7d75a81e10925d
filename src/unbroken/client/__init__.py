"""Clients of a running flow: read its results, push rows to its sources."""

from __future__ import annotations

from unbroken.client.push import PushClient
from unbroken.client.subscription import Subscription, push_addresses, subscribe
from unbroken.client.tentative_view import Reconciled, Result, SubscriptionEvent, Undo

__all__ = [
    "PushClient",
    "Reconciled",
    "Result",
    "Subscription",
    "SubscriptionEvent",
    "Undo",
    "push_addresses",
    "subscribe",
]
