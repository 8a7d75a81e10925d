"""What an update of the live page costs: on the server, and in a real browser, with many replicas and nodes that fail.

The simulator feeds the page. Its own time is not the page's and is left out; both share the machine, as does the
browser.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from unbroken.errors import Refused
from unbroken.page.page import Page, PageOptions
from unbroken.page.series import percentile
from unbroken_lab.experiments.bars import draw_bars
from unbroken_lab.experiments.experiment import (
    Experiment,
    ReportClaim,
    ReportColumn,
    Row,
    Rows,
    Say,
    Size,
    aimed,
    flat,
    number,
    parameter,
)
from unbroken_lab.page.simulated import page_of_simulation
from unbroken_lab.page.stages import many, some_faults

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIMIT_MS = 100.0
"""Up to here a person takes what happens for immediate."""

SETTLE_MS = 20_000.0
QUICK_REPLICAS, QUICK_UPDATES, QUICK_SETTLE_MS = 10, 2, 3_000.0
FIRST_DEADLINE_S = 60.0
LEFT_OUT = 3
"""The first updates build the page; they are told apart."""


def chromium() -> str | None:
    """The browser to use: UNBROKEN_CHROMIUM, or what is on the PATH; None if there is none."""
    given = os.environ.get("UNBROKEN_CHROMIUM")
    return given or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass(frozen=True)
class PageUpdates(Experiment):
    """One case: a page of a simulated flow is updated so many times."""

    name = "page"
    title = "What an update of the live page costs"
    source = "unbroken bench page"
    columns: ClassVar = (
        ReportColumn("replicas", "replicas", digits=0),
        ReportColumn("nodes", "nodes", digits=0),
        ReportColumn("updates", "updates", digits=0),
        ReportColumn("bytes", "bytes", digits=0),
        ReportColumn("server_ms.p50", "server p50", " ms", 1),
        ReportColumn("server_ms.p99", "server p99", " ms", 1),
        ReportColumn("browser_ms.p50", "browser p50", " ms", 1),
        ReportColumn("browser_ms.p99", "browser p99", " ms", 1),
        ReportColumn("first_ms", "first update", " ms", 1),
    )

    replicas: int = parameter(200, "Replicas of the simulated flow.")
    updates: int = parameter(40, "Updates to measure, about one a second.")

    def scale(self, size: Size) -> str:
        return "A simulated flow whose nodes fail, its server and a headless Chromium on one machine"

    def cases(self, size: Size) -> Sequence[Row]:
        return [{"wanted": QUICK_REPLICAS if size.quick else self.replicas}]

    def measure(self, case: Row, size: Size, say: Say) -> Rows:
        flow = many(int(float(case["wanted"] or 0)))
        flow.warm_up(size.of(SETTLE_MS, QUICK_SETTLE_MS))
        some_faults(flow, seed=1, every_s=8.0)
        updates = int(size.of(self.updates, QUICK_UPDATES))
        with page_of_simulation(flow, PageOptions()) as page:
            browser_ms = _in_browser(page, updates, say)
            if browser_ms is None:
                _wait_for(page, updates)
            update = page.feed.latest
            assert update is not None
            made, cpu = list(page.feed.timings_ms), list(page.feed.cpu_ms)
            sent = len(bytes(update.view)) + len(bytes(update.page))
        figures = {
            "replicas": sum(1 for _ in flow.world.zookeeper.layout.placement),
            "nodes": len(flow.world.machines),
            "updates": len(made),
            "bytes": sent,
            "server_ms": _figures(made),
            "server_cpu_ms": _figures(cpu),
            "browser_ms": {} if browser_ms is None else _figures(browser_ms[LEFT_OUT:]),
            "first_ms": None if browser_ms is None else round(max(browser_ms[:LEFT_OUT]), 1),
        }
        return [flat(figures)]

    def draw(self, rows: Rows, figure: Figure) -> None:
        shown = {"server_ms.p50": "server, p50", "server_ms.p99": "server, p99"}
        shown |= {"browser_ms.p50": "browser, p50", "browser_ms.p99": "browser, p99"}
        axes = figure.subplots()
        draw_bars(axes, rows, "replicas", shown, "ms for an update")
        axes.axhline(LIMIT_MS, color="0.5", linestyle="--", linewidth=1)
        axes.set_xlabel("replicas")

    def claims(self, rows: Rows) -> Sequence[ReportClaim]:
        places = {"server_ms.p99": "on the server", "browser_ms.p99": "in the browser"}
        return [
            aimed(
                f"p99 of an update of {number(row, 'replicas'):.0f} replicas {place}",
                f"at most {LIMIT_MS:g} ms",
                number(row, column),
                lambda value: value <= LIMIT_MS,
                " ms",
            )
            for row in rows
            for column, place in places.items()
        ]


def _wait_for(page: Page, updates: int) -> None:
    """Look at the page as somebody would, without a browser."""
    viewer = page.feed.join(lambda: None)
    deadline = time.monotonic() + FIRST_DEADLINE_S + 10 * updates
    while len(page.feed.timings_ms) < updates and time.monotonic() < deadline:
        time.sleep(0.1)
    viewer.close()


def _in_browser(page: Page, updates: int, tell: Say) -> list[float] | None:
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
            deadline = time.monotonic() + FIRST_DEADLINE_S + 10 * updates
            while (seen := int(tab.evaluate(count))) < updates + LEFT_OUT:
                if time.monotonic() > deadline:
                    raise Refused(
                        f"the browser has shown {seen} updates only; run it while nothing else uses the machine"
                    )
                tab.wait_for_timeout(250)
            taken: Sequence[float] = tab.evaluate("performance.getEntriesByName('update').map((one) => one.duration)")
            return [float(ms) for ms in taken]
        finally:
            shown.close()


def _figures(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    found = {"p50": percentile(ordered, 0.5), "p99": percentile(ordered, 0.99), "max": ordered[-1] if ordered else None}
    return {name: round(value or 0.0, 1) for name, value in found.items()}
