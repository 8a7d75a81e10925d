"""The server of a page, with the address to open in a browser."""

from __future__ import annotations

from starlette.types import ASGIApp

from unbroken.transport.http.server import AppServer


class PageServer(AppServer):
    """A page on a port of its own; with port 0 on a free one, see ``url``."""

    def __init__(self, app: ASGIApp, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(app, host, port, "the page")

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://[{host}]:{self.port}/" if ":" in host else f"http://{host}:{self.port}/"
