"""What an update of the live page costs: on the server, and in a real browser, with many replicas and nodes that fail.

The simulator feeds the page. Its own time is not the page's and is left out; both share the machine, as does the
browser.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unbroken.errors import Refused
from unbroken.page.page import Page, PageOptions
from unbroken.page.series import percentile
from unbroken_lab.page.simulated import page_of_simulation
from unbroken_lab.page.stages import many, some_faults

LIMIT_MS = 100.0
"""Up to here somebody takes what happens for immediate."""

SETTLE_MS = 20_000.0
FIRST_DEADLINE_S = 60.0
LEFT_OUT = 3
"""The first updates build the page; they are told apart."""


@dataclass(frozen=True)
class PageSettings:
    replicas: int = 200
    updates: int = 40


def chromium() -> str | None:
    """The browser to use: UNBROKEN_CHROMIUM, or what is on the PATH; None if there is none."""
    given = os.environ.get("UNBROKEN_CHROMIUM")
    return given or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def run_page(settings: PageSettings, tell: Callable[[str], None]) -> dict[str, Any]:
    """Let a page be updated so many times, and say what that took."""
    tell(f"simulating a flow of {settings.replicas} replicas")
    flow = many(settings.replicas)
    flow.warm_up(SETTLE_MS)
    some_faults(flow, seed=1, every_s=8.0)
    page = page_of_simulation(flow, PageOptions())
    with page:
        browser_ms = _in_browser(page, settings, tell)
        if browser_ms is None:
            _wait_for(page, settings.updates)
        update = page.feed.latest
        assert update is not None
        made, cpu = list(page.feed.timings_ms), list(page.feed.cpu_ms)
        size = len(update.text)
    server = _figures(made)
    result: dict[str, Any] = {
        "replicas": sum(1 for _ in flow.world.zookeeper.layout.placement),
        "nodes": len(flow.world.machines),
        "updates": len(made),
        "bytes": size,
        "server_ms": server,
        "server_cpu_ms": _figures(cpu),
        "browser_ms": None if browser_ms is None else _figures(browser_ms[LEFT_OUT:]),
        "first_ms": None if browser_ms is None else round(max(browser_ms[:LEFT_OUT]), 1),
        "limit_ms": LIMIT_MS,
    }
    spent = [server["p99"], *([] if result["browser_ms"] is None else [result["browser_ms"]["p99"]])]
    return {**result, "within_limit": all(ms <= LIMIT_MS for ms in spent)}


def _wait_for(page: Page, updates: int) -> None:
    """Look at the page as somebody would, without a browser."""
    viewer = page.feed.join(lambda: None)
    deadline = time.monotonic() + FIRST_DEADLINE_S + 10 * updates
    while len(page.feed.timings_ms) < updates and time.monotonic() < deadline:
        time.sleep(0.1)
    viewer.close()


def _in_browser(page: Page, settings: PageSettings, tell: Callable[[str], None]) -> list[float] | None:
    """What each update took in a browser, with the layout it causes; None if there is no browser."""
    browser = chromium()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        tell("only the server is measured: Playwright is not installed (pip install playwright)")
        return None
    if browser is None:
        tell("only the server is measured: there is no chromium on the PATH; name one in UNBROKEN_CHROMIUM")
        return None
    tell(f"looking at it with {browser}")
    with sync_playwright() as driver:
        shown = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        try:
            tab = shown.new_page(viewport={"width": 1440, "height": 900})
            tab.goto(page.url)
            count = "performance.getEntriesByName('update').length"
            deadline = time.monotonic() + FIRST_DEADLINE_S + 10 * settings.updates
            while (seen := int(tab.evaluate(count))) < settings.updates + LEFT_OUT:
                if time.monotonic() > deadline:
                    raise Refused(f"the browser has shown {seen} updates only; the machine may be too busy")
                tab.wait_for_timeout(250)
            taken: Sequence[float] = tab.evaluate("performance.getEntriesByName('update').map((one) => one.duration)")
            return [float(ms) for ms in taken]
        finally:
            shown.close()


def _figures(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    found = {"p50": percentile(ordered, 0.5), "p99": percentile(ordered, 0.99), "max": ordered[-1] if ordered else None}
    return {name: round(value or 0.0, 1) for name, value in found.items()}
