"""A page that is served, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any

from unbroken.page.actions import Actions, TokenCheck
from unbroken.page.app import make_app
from unbroken.page.feed import PageFeed
from unbroken.page.server import PageServer

TOKEN = "open sesame"


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.code = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Requests to one server."""

    def __init__(self, server: PageServer) -> None:
        self.server = server

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, headers)

    def act(self, action: str, body: object, **headers: str) -> Answer:
        given = {"Content-Type": "application/json", "X-Unbroken-Token": TOKEN, **_named(headers)}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", f"/api/actions/{action}", data, {k: v for k, v in given.items() if v})

    def ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body, _named(headers))
            return Answer(connection.getresponse())


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@contextlib.contextmanager
def served(feed: PageFeed, actions: Actions) -> Iterator[Client]:
    with PageServer(make_app(feed, actions, TokenCheck(TOKEN))) as server:
        yield Client(server)
        feed.close()


class Events:
    """A stream of updates, read one after the other."""

    def __init__(self, server: PageServer) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        self._connection.request("GET", "/api/events")
        self.response = self._connection.getresponse()

    def next(self) -> dict[str, Any]:
        """The next update; comments and settings of the stream are passed over."""
        while line := self.response.readline():
            if line.startswith(b"data: "):
                value: dict[str, Any] = json.loads(line[6:])
                return value
        raise EOFError("the stream has ended")

    def close(self) -> None:
        self._connection.close()
