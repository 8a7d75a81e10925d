"""A simulated flow on a page in a real browser."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kit.page.serving import TOKEN
from kit.places import ROOT
from unbroken import __version__
from unbroken.page.actions import TokenCheck
from unbroken.page.app import make_app
from unbroken.page.document import PageFacts
from unbroken.page.feed import PageFeed
from unbroken.page.server import PageServer
from unbroken_lab.page.simulated import SimulatedFlow

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SHOTS = ROOT / "build" / "page"
"""Where pictures of the page are kept."""

DEADLINE_MS = 60_000.0
"""Far longer than anything takes; for machines that do a lot else."""

DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}


def chromium() -> str | None:
    return os.environ.get("UNBROKEN_CHROMIUM") or shutil.which("chromium")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A headless Chromium; the test is left out where there is none."""
    found = chromium()
    if found is None:
        pytest.skip("there is no chromium on the PATH; install it (make chromium), or name one in UNBROKEN_CHROMIUM")
    driver = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with driver.sync_playwright() as playwright:
        # Without a sandbox, because tests may run as root in a container; only pages of this process are opened.
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"], timeout=DEADLINE_MS)
        try:
            yield started
        finally:
            started.close()


class Stage:
    """A simulated flow that is a second older with every look, and its page."""

    def __init__(self, flow: SimulatedFlow, *, warm_up_s: float = 4.0, period_s: float = 0.25) -> None:
        self.flow = flow
        flow.warm_up(warm_up_s * 1000)
        self._passed_s = 0.0
        flow._clock, flow._seen_s = self._pass, 0.0
        facts = PageFacts(actions=tuple(flow.offered), simulated=True, version=__version__, token_hint="It is a word.")
        self._make_feed: Callable[[], PageFeed] = lambda: PageFeed(flow.look, facts, period_s=period_s)
        self.feed = self._make_feed()
        self.server = self._serve(0)

    @property
    def url(self) -> str:
        return self.server.url

    def interrupt(self) -> None:
        """The page's server goes away."""
        self.feed.close()
        self.server.stop()

    def resume(self) -> None:
        """And comes back at the same address, with nothing of what it knew."""
        self.feed = self._make_feed()
        self.server = self._serve(self.server.port)

    def close(self) -> None:
        self.interrupt()

    def _serve(self, port: int) -> PageServer:
        server = PageServer(make_app(self.feed, self.flow, TokenCheck(TOKEN)), port=port)
        server.start()
        self.feed.start()
        return server

    def _pass(self) -> float:
        self._passed_s += 1.0
        return self._passed_s


@contextlib.contextmanager
def visited(
    browser: Browser, url: str, viewport: dict[str, int] | None = None, scheme: str = "light"
) -> Iterator[Page]:
    """The page, open and with its first update. Whatever the browser complains about fails the test."""
    complaints: list[str] = []
    options: Any = {"viewport": viewport or DESKTOP, "color_scheme": scheme, "reduced_motion": "reduce"}
    context = browser.new_context(**options)
    context.set_default_timeout(DEADLINE_MS)
    try:
        tab = context.new_page()
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        tab.goto(url)
        tab.wait_for_selector(".cell")
        yield tab
        expected = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_EMPTY_RESPONSE", "status of 401")
        left = [text for text in complaints if not any(word in text for word in expected)]
        assert not left, left
    finally:
        context.close()


def shot(tab: Page, name: str, *, full: bool = False) -> Path:
    """Keep a picture of what is to be seen."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    path = SHOTS / f"{name}.png"
    tab.screenshot(path=path, full_page=full)
    return path
