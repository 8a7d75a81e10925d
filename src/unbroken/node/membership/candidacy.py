"""A node's candidacy for controller, and the time in which it holds the office."""

from __future__ import annotations

import contextlib
import logging
import threading

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from unbroken.coordination.election import Office
from unbroken.node.membership.controller import Controller
from unbroken.protocol.values.ids import NodeId
from unbroken.security.sealing import ForgedDocument

log = logging.getLogger(__name__)

AGAIN_S = 0.2
"""Pause before a node stands for election again."""

CONTROL_S = 0.5
"""The controller looks at members and replicas at least this often."""


class Candidacy:
    """Stands for election until ``closed``, and lets the controller decide while this node is elected."""

    def __init__(
        self, client: KazooClient, me: NodeId, controller: Controller, office: Office, closed: threading.Event
    ) -> None:
        self.elected = False
        self._client = client
        self._me = me
        self._controller = controller
        self._office = office
        self._closed = closed
        self._changed = threading.Event()

    def notify(self) -> None:
        """A document has changed by which the controller decides, or the candidacy has ended; from any thread."""
        self._changed.set()

    def stand(self) -> None:
        """Returns when the candidacy has ended."""
        while not self._closed.is_set():
            try:
                self._client.Election(self._office.path, self._me).run(self._control)
            except (KazooException, KazooTimeoutError) as error:
                if not self._closed.is_set():
                    log.warning("election interrupted: %s", type(error).__name__)
            except BaseException:  # it asks sinks, which may be a user's code
                if not self._closed.is_set():
                    log.exception("the controller failed")
            self._closed.wait(AGAIN_S)

    def _control(self) -> None:
        """Run while elected."""
        log.info("%s is the controller", self._me)
        self._controller.take_office()
        self.elected = True
        try:
            self._hold_office()
        finally:
            self.elected = False

    def _hold_office(self) -> None:
        session = self._client.client_id
        # The office belongs to the session; compare-and-set keeps a late decision from doing harm.
        while not self._closed.is_set() and self._client.connected and self._client.client_id == session:
            if not self._office.held():
                log.warning("%s is no longer the controller", self._me)
                return
            self._changed.clear()
            # A forged document is reported when it is read, and nothing is decided by it.
            with contextlib.suppress(ForgedDocument):
                self._controller.decide()
            self._changed.wait(CONTROL_S)
