"""A node that is probably the one that is cut off lets the others decide about the ingress first."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from kit.support import wait_until
from unbroken.flow.settings import Settings
from unbroken.node import in_sync_proposals
from unbroken.node.in_sync_proposals import InSyncProposals
from unbroken.node.links import Links
from unbroken.protocol.ingress.log import InSync, ProposeInSync
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.ingress import InSyncProposed

NEVER = float("inf")


@dataclass(frozen=True)
class Heard:
    """A link of which only the silence matters."""

    ago_s: float

    def silence_s(self) -> float:
        return self.ago_s


def links(**ago_s: float) -> Links:
    """Links to members of the flow, by how long ago they were heard; a capital letter is one that has left."""
    made = Links("me", Settings(heartbeat=200), "", cast(Any, None), cast(Any, None))
    made._members = frozenset(name for name in (*ago_s, "me") if name.islower())
    made._links.update({name: cast(Any, Heard(ago)) for name, ago in ago_s.items()})
    return made


@pytest.mark.parametrize(
    ("heard", "cut_off"),
    [
        ({"lost": 2.0, "third": 2.0}, True),
        ({"lost": 2.0, "third": 0.1}, False),
        ({"lost": 2.0}, False),
        ({"lost": 2.0, "third": NEVER}, True),
        ({"lost": 2.0, "third": 0.1, "fourth": 2.0}, False),
        ({"lost": 2.0, "third": 0.1, "fourth": 2.0, "fifth": 2.0}, True),
        # Killed together: their last words are a moment old.
        ({"lost": 0.1, "third": 0.1}, False),
        ({"lost": 2.0, "GONE": 60.0}, False),
    ],
)
def test_who_hears_fewer_than_half_of_the_others_is_cut_off(heard: dict[str, float], cut_off: bool) -> None:
    assert links(**heard).cut_off({"lost"}) is cut_off


@dataclass
class Asking:
    """A member of an ingress of two that has lost the other one."""

    hears_others: bool
    asked: list[float] = field(default_factory=list)
    told: list[Notice] = field(default_factory=list)

    def propose(self, proposal: ProposeInSync, replica: ReplicaId) -> None:
        assert proposal.proposal.members == {"me"} and replica == ReplicaId(INGRESS, 0)
        self.asked.append(time.monotonic())

    def ask(self) -> None:
        alone = InSync(2, "me", frozenset({"me"}), 1)
        known = links(lost=2.0, third=0.1 if self.hears_others else 2.0)
        proposals = InSyncProposals("me", self.told.append, known.cut_off, self)
        sync = InSync(1, "lost", frozenset({"me", "lost"}), 1)
        proposals.propose(ProposeInSync(alone, 1), sync, ReplicaId(INGRESS, 0))
        assert self.told == [InSyncProposed("me", ("me",))]


def test_who_hears_the_others_asks_at_once() -> None:
    asking = Asking(hears_others=True)
    asking.ask()
    assert len(asking.asked) == 1


def test_who_is_cut_off_asks_late_but_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_sync_proposals, "HELD_BACK_S", 0.2)
    asking = Asking(hears_others=False)
    since = time.monotonic()
    asking.ask()
    wait_until(lambda: asking.asked, 30, "the question")
    assert asking.asked[0] - since >= 0.2
