"""The page over HTTP: its files, the state of the flow, a stream of updates, and actions."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from unbroken.errors import UnbrokenError
from unbroken.page.actions import TOKEN_HEADER, ActionRequest, Actions, TokenCheck
from unbroken.page.feed import Known, PageFeed
from unbroken.page.guards import Guarded, is_same_origin

log = logging.getLogger(__name__)

STATIC = Path(__file__).with_name("static")
KEEP_ALIVE_S = 15.0
"""What stands between a page and its server may give up a connection on which nothing is said for long."""

SEND_DEADLINE_S = 30.0
"""A viewer that takes nothing for so long is gone; its browser connects again if it is not."""

ACTION_DEADLINE_S = 15.0
MOST_BODY = 4_096


def make_app(feed: PageFeed, actions: Actions, door: TokenCheck, names: Collection[str] = ()) -> Starlette:
    """The application. ``names`` are those that the host is known by beside its addresses."""
    front = _Front(feed, actions, door)
    return Starlette(
        routes=[
            Route("/", front.index, methods=["GET"]),
            Route("/api/state", front.state, methods=["GET"]),
            Route("/api/events", front.events, methods=["GET"]),
            Route("/api/actions/{action}", front.act, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guarded, names=names)],
    )


class _Front:
    def __init__(self, feed: PageFeed, actions: Actions, door: TokenCheck) -> None:
        self._feed = feed
        self._actions = actions
        self._door = door

    async def index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def state(self, request: Request) -> Response:
        """All that a page knows after its first update; for programs."""
        update = self._feed.latest
        if update is None:
            return _refusal(503, "the flow has not been looked at yet; try again in a moment")
        return Response(update.since(Known())[0], media_type="application/json")

    async def events(self, request: Request) -> Response:
        try:
            return EventStream(self._feed)
        except UnbrokenError as error:
            return _refusal(503, str(error))

    async def act(self, request: Request) -> Response:
        if not is_same_origin(request.headers):
            return _refusal(403, "an action is only taken from the page itself")
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _refusal(415, "an action is told what to do as application/json")
        if not self._door.opens_to(request.headers.get(TOKEN_HEADER, "")):
            return _refusal(401, "the token is missing or wrong")
        try:
            wish = ActionRequest.from_json(request.path_params["action"], json.loads(await _body(request)))
        except (UnbrokenError, ValueError) as error:
            return _refusal(400, str(error))
        try:
            said = await asyncio.wait_for(run_in_threadpool(self._actions.do, wish), ACTION_DEADLINE_S)
        except UnbrokenError as error:
            return _refusal(409, str(error))
        except TimeoutError:
            return _refusal(504, f"{wish.action} took longer than {ACTION_DEADLINE_S:g} s; see the history")
        log.warning("from the page: %s", said)
        self._feed.hurry()
        return JSONResponse({"said": said})


class EventStream(Response):
    """Updates as server-sent events: the newest whenever there is one, and a sign of life if there is none for long."""

    def __init__(self, feed: PageFeed) -> None:
        super().__init__(media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._news.set)

        self._viewer = feed.join(wake)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._tell(send, gone)
        except TimeoutError:
            log.info("a page takes no updates and is given up")
        finally:
            self._viewer.close()
            gone.cancel()

    async def _tell(self, send: Send, gone: asyncio.Future[None]) -> None:
        known = Known()
        text = "retry: 1000\n\n"
        while not gone.done() and not self._viewer.ended:
            self._news.clear()
            update = self._viewer.take(known)
            if update is not None:
                told, known = update.since(known)
                text += f"data: {told}\n\n"
            if text:
                body = {"type": "http.response.body", "body": text.encode(), "more_body": True}
                await asyncio.wait_for(send(body), SEND_DEADLINE_S)
            text = "" if await self._something(gone) else ": still here\n\n"
        if not gone.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _something(self, gone: asyncio.Future[None]) -> bool:
        """Wait for news, or for the viewer to go; False if there is neither for long."""
        waits: set[asyncio.Future[Any]] = {asyncio.ensure_future(self._news.wait()), gone}
        done, _ = await asyncio.wait(waits, timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits - {gone}:
            wait.cancel()
        return bool(done)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY:
            raise UnbrokenError(f"an action has no more than {MOST_BODY} bytes to say")
    return bytes(body)


def _refusal(code: int, why: str) -> Response:
    return JSONResponse({"error": why}, code)
