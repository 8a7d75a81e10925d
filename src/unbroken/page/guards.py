"""What a page's server asks of every request before anything else.

The page shows how a flow is to whoever reaches its port. What has to be kept out are other sites in the browser of
somebody who does: a site that lets its own name point to this host (the check of the host), that frames the page or
sends requests to it (the headers, the check of the origin).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def host_name(header: str) -> str:
    """The name in a ``Host`` header, without the port and the brackets of an address."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.rpartition(":")[0] if name.count(":") == 1 else name


def is_known_host(header: str, names: Collection[str]) -> bool:
    """Whether a request is meant for this server: an address, which nobody can point elsewhere, or a name it has."""
    name = host_name(header)
    if name in ("localhost", socket.gethostname().lower(), *(known.lower() for known in names)):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_same_origin(headers: Headers) -> bool:
    """Whether a request that changes something comes from the page itself, or from no browser at all."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    _, separator, place = origin.partition("://")
    return bool(separator) and place.lower() == headers.get("host", "").strip().lower()


class Guarded:
    """An application behind these checks; ``names`` are further ones that this host is known by."""

    def __init__(self, app: ASGIApp, names: Collection[str] = ()) -> None:
        self._app = app
        self._names = tuple(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-cache")
            await send(message)

        host = Headers(scope=scope).get("host", "")
        if not is_known_host(host, self._names):
            said = f"this page is not known as {host_name(host)}; open it by its address, or start it with --name\n"
            await PlainTextResponse(said, 421)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)
