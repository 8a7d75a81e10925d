"""The client of ZooKeeper that all parts of a flow use: it has the flow's password, and documents are sealed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import KazooException, NoAuthError
from kazoo.handlers.utils import wrap
from kazoo.recipe.watchers import DataWatch
from kazoo.security import ACL, make_acl, make_digest_acl

from unbroken.errors import UnbrokenError
from unbroken.security.keys import derive
from unbroken.security.sealing import ForgedDocument, Seal

log = logging.getLogger(__name__)

ROOT = "/unbroken"
USER = "unbroken"

NOTICES_LIMIT = 1_000
"""Paths of refused documents that are remembered, each of which is reported once."""


class SealedClient(KazooClient):  # type: ignore[misc]
    """Reads and writes documents below ``/unbroken/<flow>`` sealed, so that no reader sees one that is not.

    To read a document without a valid seal raises ForgedDocument; a watch passes over it. Znodes are made for the owner
    of the token only: other clients can neither read nor change them. ``/unbroken`` itself belongs to all flows of an
    ensemble: each may add its own part, and see the names of the others.
    """

    def __init__(self, token: str, **options: Any) -> None:
        password = derive(token, "zookeeper").hex()
        self._seal = Seal(token)
        self._told: set[str] = set()
        self.own_acl: ACL = make_digest_acl(USER, password, all=True)
        self.root_acl: list[ACL] = [self.own_acl, make_acl("world", "anyone", read=True, create=True)]
        self.notice: Callable[[ForgedDocument], None] = lambda error: log.warning("%s", error)
        super().__init__(auth_data=[("digest", f"{USER}:{password}")], default_acl=[self.own_acl], **options)
        self.DataWatch = functools.partial(_Watch, self)

    def create_async(self, path: str, value: bytes = b"", acl: Any = None, *args: Any, **options: Any) -> Any:
        acl = self.root_acl if path == ROOT else acl
        return super().create_async(path, self._sealed(path, value), acl, *args, **options)

    def set_async(self, path: str, value: bytes, version: int = -1) -> Any:
        return super().set_async(path, self._sealed(path, value), version)

    def get_async(self, path: str, watch: Any = None) -> Any:
        answer = super().get_async(path, watch)
        if not _is_document(path):
            return answer
        result = self.handler.async_result()

        @wrap(result)  # type: ignore[untyped-decorator]
        def unsealed(answered: Any) -> Any:
            data, stat = answered.get()
            return self._unsealed(path, data), stat

        answer.rawlink(unsealed)
        return result

    def transaction(self) -> TransactionRequest:
        return _SealedTransaction(self)

    def _sealed(self, path: str, data: bytes) -> bytes:
        return self._seal.seal(path, data) if _is_document(path) else data

    def _unsealed(self, path: str, data: bytes) -> bytes:
        try:
            return self._seal.unseal(path, data)
        except ForgedDocument as error:
            if path not in self._told and len(self._told) < NOTICES_LIMIT:
                self._told.add(path)
                self.notice(error)
            raise


class _SealedTransaction(TransactionRequest):  # type: ignore[misc]
    def create(self, path: str, value: bytes = b"", *args: Any, **options: Any) -> None:
        super().create(path, self.client._sealed(path, value), *args, **options)

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        super().set_data(path, self.client._sealed(path, value), version)


class _Watch(DataWatch):  # type: ignore[misc]
    """Passes over forged documents: the last good one stays in force until the next."""

    def _get_data(self, event: Any = None) -> None:
        try:
            super()._get_data(event)
        except ForgedDocument:
            return  # reported by the client; the watch is set


def _is_document(path: str) -> bool:
    return path.startswith(f"{ROOT}/") and path.count("/") > 2


def claim_root(client: SealedClient, flow: str) -> None:
    """Make the part of a flow, or see that it belongs to the owner of the token; raises UnbrokenError if not.

    The owner of a znode may delete what is below it, whatever the permissions there.
    """
    root = f"{ROOT}/{flow}"
    try:
        client.ensure_path(root)
        found = client.get_acls(root)[0]
    except NoAuthError:
        found = None
    if found != [client.own_acl]:
        raise UnbrokenError(
            f"{root} in ZooKeeper does not belong to the token of this flow. Give the token that the flow was started "
            "with; if no flow of this name runs there, delete that part of ZooKeeper, or rename the flow."
        )


def check_access(client: SealedClient, flow: str) -> None:
    """Raise UnbrokenError if the token does not open the documents of a flow that exists."""
    try:
        client.get_children(f"{ROOT}/{flow}")
    except NoAuthError:
        raise UnbrokenError(
            f"the token does not open flow {flow} in ZooKeeper. Give the token that the flow was started with, with "
            "--token-file or UNBROKEN_TOKEN."
        ) from None
    except KazooException:
        return  # it has not begun, or ZooKeeper is unavailable: what is read next reports it


def close_server(client: SealedClient, address: str) -> None:
    """Keep everyone else out of a server that serves one flow: its top may be changed by the owner of the token only.

    The names of flows stay readable, so that commands find the only one. Raises UnbrokenError if another client was
    faster.
    """
    readable = [client.own_acl, make_acl("world", "anyone", read=True)]
    try:
        for path in ("/", "/zookeeper/quota", ROOT):
            client.ensure_path(path)
            client.set_acls(path, readable)
    except NoAuthError:
        raise UnbrokenError(
            f"the ZooKeeper at {address} belongs to another token. Start the run in a directory of its own."
        ) from None
