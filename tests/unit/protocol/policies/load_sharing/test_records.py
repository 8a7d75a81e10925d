"""The records that shards of a segment keep of each other."""

from __future__ import annotations

import pytest

from kit.protocol_node import MINE, SIBLING, node
from unbroken.errors import InvariantViolation
from unbroken.protocol.policies.load_sharing.messages import Record
from unbroken.protocol.policies.load_sharing.records import LoadSharing
from unbroken.protocol.values.rebuilt_state import FROM_THE_FIRST


def test_a_record_that_comes_late_changes_nothing() -> None:
    sharing = node().policies.of(LoadSharing)
    newer, older = Record(SIBLING, 4, FROM_THE_FIRST, 9), Record(SIBLING, 3, FROM_THE_FIRST, 12)
    for record in (newer, older, newer):
        sharing.received(record)
    assert sharing.known == {SIBLING: newer} and sharing.of(SIBLING.shard) == newer


def test_a_record_of_another_replica_is_found() -> None:
    b = node()
    b.policies.of(LoadSharing).known[MINE] = Record(SIBLING, 4, FROM_THE_FIRST, 9)
    with pytest.raises(InvariantViolation, match="is taken for one of"):
        b.check()
