"""What can be tuned in the protocol; the user's settings are translated into these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProtocolSettings:
    """Times are in milliseconds, sizes in bytes.

    With ``snapshots``, producers keep what follows the last snapshot of a shard, so that it can go on from there if
    all its replicas are lost. Consumers acknowledge every ``ack_every`` units.
    Replicas ask the next in their ring every ``ring_period_ms`` (0: never), and suspect it after ``ring_misses`` times
    without an answer. A replica that has processed fewer than ``warm_units``, or has had less than ``warm_ms`` for it,
    does not take input for missing: first micro-batches take seconds, here and where the input comes from. A fork takes
    seconds to start: where missing input is waited for less than ``standing_ms``, one is kept ready all the time.
    """

    pulse_min_ms: float = 250
    pulse_max_ms: float = 10_000
    pulse_start_ms: float = 500
    in_flight_slack: int = 0
    hedge_ms: float = 100
    client_retain: int = 2_000
    order_settle_ms: float = 5.0
    order_lost_ms: float = 50.0
    order_silent_ms: float = 1_000.0
    grace_ms: float = 200
    single_delivery: bool = False
    patience_ms: float = 2_000
    catch_up_lag: int = 2
    claim_units: int = 1_000
    claim_bytes: int = 1 << 30
    snapshots: bool = False
    ack_every: int = 1
    ring_period_ms: float = 500
    ring_misses: int = 3
    warm_units: int = 10
    warm_ms: float = 30_000
    standing_ms: float = 10_000
