"""Pushed rows are acknowledged when both ingress nodes have them, and survive the loss of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kit.faults import strike
from kit.places import FLOWS
from kit.support import wait_until
from unbroken.client import PushClient, Subscription
from unbroken.coordination.documents import connect, read_members
from unbroken.local.launcher import LocalCluster
from unbroken.testing.faults import Kill

FLOW = FLOWS / "pushed.py"


class Totals:
    """The newest count and sum of every user, as they come out."""

    def __init__(self, results: Subscription) -> None:
        self._results = results
        self.values: dict[str, tuple[int, int]] = {}

    def reach(self, wanted: dict[str, tuple[int, int]], deadline_s: float) -> None:
        def there() -> bool:
            result = self._results.next(0.2)
            for row in [] if result is None else result.table.to_pylist():
                self.values[row["user"]] = (row["n"], row["total"])
            return self.values == wanted

        wait_until(there, deadline_s, f"{wanted}, got {self.values}")


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.smoke
def test_pushes_and_files_survive_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    incoming = tmp_path / "in"
    incoming.mkdir()
    monkeypatch.setenv("FLOW_IN", str(incoming))
    with LocalCluster(FLOW, tmp_path / "state") as cluster:
        cluster.start()
        cluster.wait_ready(300)
        zookeeper = connect(cluster.zookeeper.address, 10, token=cluster.token)
        addresses = [member.push for member in read_members(zookeeper, "pushed").values()]
        zookeeper.stop()
        with cluster.subscribe("live") as results:
            totals = Totals(results)
            client = PushClient(addresses, cluster.token, "events", producer_id="till")
            client.send([{"user": "ann", "amount": 5}, {"user": "bob", "amount": 7}])
            client.send(b'{"user": "ann", "amount": 1}\nnot json\n{"user": "bob", "amount": "much"}\n')
            again = PushClient.of_run(cluster.directory, "events", producer_id="till", next_sequence=1)
            assert sorted(again.addresses) == sorted(client.addresses)
            again.send([{"user": "ann", "amount": 5}, {"user": "bob", "amount": 7}])
            totals.reach({"ann": (2, 6), "bob": (1, 7)}, 60)
            (incoming / "more.json").write_text('{"user": "cid", "amount": 9}\n{"user": 4}\n')
            totals.reach({"ann": (2, 6), "bob": (1, 7), "cid": (1, 9)}, 30)
            leader = next(s.node for s in cluster.status() if s.leading)
            strike(cluster, Kill(leader))
            client.send([{"user": "ann", "amount": 10}])
            totals.reach({"ann": (3, 16), "bob": (1, 7), "cid": (1, 9)}, 30)
    letters = [
        json.loads(line)
        for f in (tmp_path / "state" / "dead-letters").rglob("*.jsonl")
        for line in f.read_text().splitlines()
    ]
    assert len(letters) == 3
    assert all(letter["reason"] for letter in letters)
