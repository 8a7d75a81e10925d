"""What can be done to a flow from its page, and who may.

Draining a node and building a replica again are wishes that become documents in ZooKeeper, as on the command line.
Killing and freezing are for demonstrations and have to be switched on. Every action needs the flow's token, sent by the
page itself: a header that no other site can make a browser send.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from unbroken.errors import Refused, Unreachable
from unbroken.operations import requests as operations
from unbroken.protocol.values.ids import NodeId, ShardId

TOKEN_HEADER = "x-unbroken-token"


@dataclass(frozen=True)
class ActionRequest:
    """What somebody asks for: an action, and what it is to be done to."""

    action: str
    node: NodeId
    shard: str = ""

    @classmethod
    def from_json(cls, action: str, value: object) -> ActionRequest:
        """UnbrokenError if it is not one."""
        if not isinstance(value, Mapping):
            raise Refused('an action is told what to do as a JSON object, such as {"node": "node-2"}')
        node, shard = value.get("node"), value.get("shard", "")
        if not isinstance(node, str) or not node or not isinstance(shard, str):
            raise Refused(f"{action} needs the name of a node")
        return cls(action, node, shard)


class Actions(Protocol):
    """What can be done to the flow that a page shows."""

    @property
    def offered(self) -> tuple[str, ...]:
        """The names of the actions that there are."""

    def do(self, wish: ActionRequest) -> str:
        """Do it, and say what was done; UnbrokenError if it cannot be done."""


class NodeFaults(Protocol):
    """What a page that may do harm does to nodes of this host; each fault gives the number of the node's process."""

    def local(self) -> Collection[NodeId]:
        """The nodes that it can be done to."""

    def frozen(self) -> Collection[NodeId]:
        """Those that are stopped at this moment."""

    def kill(self, node: NodeId) -> int: ...

    def freeze(self, node: NodeId) -> int: ...

    def thaw(self, node: NodeId) -> int: ...

    def close(self) -> None:
        """Let what was frozen continue."""


class TokenCheck:
    """Lets in who knows the token. The comparison takes as long for any other word."""

    def __init__(self, token: str) -> None:
        if not token:
            raise Refused("the actions of a page need the flow's token: give --token-file, or set UNBROKEN_TOKEN")
        self._token = token.encode()

    def opens_to(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)


class NoActions:
    """A page that only shows."""

    @property
    def offered(self) -> tuple[str, ...]:
        return ()

    def do(self, wish: ActionRequest) -> str:
        raise Refused(f"there is no action {wish.action!r} here")


class FlowActions:
    """Actions on a real flow; one at a time, because each decides by what it has just read."""

    def __init__(self, client: KazooClient, flow: str, faults: NodeFaults | None = None) -> None:
        self._client = client
        self._flow = flow
        self._lock = threading.Lock()
        self._deeds: dict[str, Callable[[ActionRequest], str]] = {
            "drain": self._drain,
            "undrain": self._undrain,
            "reinit": self._reinit,
        }
        if faults is not None:
            self._deeds |= {
                "kill": lambda wish: f"{wish.node} was killed (process {faults.kill(wish.node)})",
                "freeze": lambda wish: f"{wish.node} is frozen (process {faults.freeze(wish.node)})",
                "thaw": lambda wish: f"{wish.node} continues (process {faults.thaw(wish.node)})",
            }

    @property
    def offered(self) -> tuple[str, ...]:
        return tuple(self._deeds)

    def do(self, wish: ActionRequest) -> str:
        deed = self._deeds.get(wish.action)
        if deed is None:
            raise Refused(f"there is no action {wish.action!r} here; there are: {', '.join(self._deeds)}")
        with self._lock:
            return deed(wish)

    def _drain(self, wish: ActionRequest) -> str:
        self._ask(lambda: operations.drain(self._client, self._flow, wish.node))
        return f"{wish.node} is to be left; it can be stopped when nothing is on it any more"

    def _undrain(self, wish: ActionRequest) -> str:
        self._ask(lambda: operations.undo_drain(self._client, self._flow, wish.node))
        return f"{wish.node} may be used again"

    def _reinit(self, wish: ActionRequest) -> str:
        try:
            shard = ShardId.parse(wish.shard)
        except ValueError:
            raise Refused(f"{wish.shard!r} is not a shard, such as totals.0") from None
        replica = self._ask(lambda: operations.reinit(self._client, self._flow, shard, wish.node))
        return f"{replica} on {wish.node} is to be built again from its peer"

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Ask ZooKeeper, unless it is away: a request would then wait for it as long as it takes."""
        if not self._client.connected:
            raise Unreachable("ZooKeeper is away; nothing can be changed until it is back")
        try:
            return question()
        except (KazooException, KazooTimeoutError) as error:
            raise Unreachable(f"ZooKeeper did not take it ({type(error).__name__}); try again") from error
