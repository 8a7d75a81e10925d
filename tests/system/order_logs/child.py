"""A process that leads a shard and publishes as fast as its orders come back, for tests that freeze it.

It is given one JSON object. What it reads are lines with orders, and it says when it is refused. It ends when it has
read the order ``until``, or with a refusal if ``ends`` says so.
"""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

from kit.orders.members import SHARD, WAIT_S, order
from kit.orders.services import open_log
from unbroken.node.policies.leader.head import ORDER
from unbroken.node.policies.leader.log import LogEvent
from unbroken.protocol.policies.leader.orders import LeaderKnown, Ordered, OrderRefused

AT_ONCE = 3


def main(what: dict[str, Any]) -> None:
    events: queue.Queue[LogEvent] = queue.Queue()
    log = open_log(what["kind"], what["address"], what["name"], what["node"], events.put)
    node, term, read, asked = what["node"], what["term"], 0, 0
    log.follow(SHARD, 0)
    log.lead(SHARD, term)
    leading = False
    while read < what["until"]:
        event = events.get(timeout=WAIT_S)
        if isinstance(event, Ordered):
            for each in event.orders:
                print(ORDER.encode(each).decode(), flush=True)
            read = event.orders[-1].number
        elif isinstance(event, LeaderKnown):
            leading, asked = event.leader == node, event.last
        elif isinstance(event, OrderRefused):
            print(f"refused {event.term}", flush=True)
            if what["ends"]:
                break
        if leading and read >= asked:
            log.publish(SHARD, term, [order(read + each, term, ord(node)) for each in range(1, AT_ONCE + 1)])
            asked = read + AT_ONCE
    log.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
