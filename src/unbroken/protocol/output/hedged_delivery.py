"""Delivery of units to a sink by whichever replica is first, without a failure detector."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.errors import require


@dataclass
class HedgedDelivery:
    """Replica k delivers a unit k hedge delays after it is ready, unless a sibling reports it delivered.

    All replicas try in the end and the sink skips what is there already, so a dead, frozen or cut-off
    sibling costs a hedge delay and never a result; with all replicas well only one of them touches the sink.

    Invariants: units are handed to the sink in order, one at a time: as long as the sink has not come back
    with one, no other is handed to it, even if a sibling has delivered it meanwhile. ``delivered`` never
    goes back. Units in ``passed`` are for nobody and count as delivered once all before them are.
    """

    rank: int
    hedge_ms: float
    delivered: int = 0
    ready: dict[int, float] = field(default_factory=dict)
    delivering: int | None = None
    passed: set[int] = field(default_factory=set)

    def unit_ready(self, number: int, now_ms: float) -> None:
        if number > self.delivered:
            self.ready.setdefault(number, now_ms + self.rank * self.hedge_ms)

    def pass_over(self, number: int) -> None:
        """Unit ``number`` is not for the sink."""
        if number > self.delivered:
            self.passed.add(number)
            self.mark_delivered(self.delivered)

    def next_delivery(self, now_ms: float) -> int | None:
        """The unit to hand to the sink at this moment; the caller reports back by ``finish``."""
        number = self.delivered + 1
        if self.delivering is not None or number not in self.ready or now_ms < self.ready[number]:
            return None
        self.delivering = number
        return number

    def next_due_ms(self) -> float | None:
        """When ``next_delivery`` is worth calling again, or None while nothing is waiting."""
        if self.delivering is not None:
            return None
        return self.ready.get(self.delivered + 1)

    @property
    def done_with(self) -> int:
        """Units up to here are needed neither by the sink nor by the delivery that is under way."""
        return self.delivered if self.delivering is None else min(self.delivered, self.delivering - 1)

    def finish(self, number: int) -> None:
        """The sink has ``number``: it was handed over here, and either written or found there already."""
        if self.delivering == number:
            self.delivering = None
        self.mark_delivered(number)

    def mark_delivered(self, through: int) -> None:
        """Units up to ``through`` are in the sink, put there by this replica or by a sibling."""
        self.delivered = max(self.delivered, through)
        while self.delivered + 1 in self.passed:
            self.delivered += 1
        for number in [n for n in self.ready if n <= self.delivered]:
            del self.ready[number]
        self.passed = {number for number in self.passed if number > self.delivered}

    def check(self) -> None:
        require(self.delivering is None or self.delivering <= self.delivered + 1, "delivery out of order")
        require(all(n > self.delivered for n in self.ready), "delivered unit still waiting")
