"""Two hundred replicas: an update changes what is new, and costs less than a tenth of a second."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kit.page import browsing
from kit.page.browsing import DESKTOP, PHONE, Stage, shot, visited
from unbroken.page.actions import ActionRequest
from unbroken_lab.page.stages import many

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.chromium, pytest.mark.servers]

LIMIT_MS = 100.0
UPDATES = 12
LONG_MS = 240_000.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing.browser() as found:
        yield found


@pytest.fixture(scope="module")
def stage(browser: Browser) -> Iterator[Stage]:
    found = Stage(many(200), warm_up_s=4.0, period_s=0.5)
    yield found
    found.close()


def wait_for_updates(tab: Page, wanted: int) -> None:
    tab.wait_for_function(
        "(wanted) => performance.getEntriesByName('update').length >= wanted", arg=wanted, timeout=LONG_MS
    )


ELEMENTS_MADE = """() => {
  window.made = 0;
  const elements = (record) => [...record.addedNodes].filter((node) => node.nodeType === Node.ELEMENT_NODE).length;
  const count = (records) => records.forEach((record) => { window.made += elements(record); });
  const observer = new MutationObserver(count);
  for (const id of ["replicas", "graph"]) {
    observer.observe(document.getElementById(id), { childList: true, subtree: true });
  }
  performance.clearMeasures("update");
}"""
"""Count the elements that are made in the table and in the graph from now on."""


def test_an_update_makes_no_element_of_a_known_replica_again(browser: Browser, stage: Stage) -> None:
    with visited(browser, stage.url, DESKTOP) as tab:
        assert tab.locator(".cell").count() == 200
        before = tab.locator("#replicas tr td:nth-child(4)").all_text_contents()
        tab.evaluate(ELEMENTS_MADE)
        wait_for_updates(tab, UPDATES)
        after = tab.locator("#replicas tr td:nth-child(4)").all_text_contents()
        assert len(after) == 200
        assert sum(one != other for one, other in zip(before, after, strict=True)) > 100, "the updates said nothing new"
        assert tab.evaluate("window.made") == 0


@pytest.mark.slow
def test_an_update_is_quick(browser: Browser, stage: Stage) -> None:
    with visited(browser, stage.url, DESKTOP) as tab:
        assert tab.locator(".cell").count() == 200
        stage.flow.do(ActionRequest("kill", "node-7"))
        # The first updates make everything; those that follow are what a page costs while it is open.
        wait_for_updates(tab, UPDATES + 2)
        taken = tab.evaluate("performance.getEntriesByName('update').map((one) => one.duration)")[2:]
        shot(tab, "many")
        shot(tab, "many-whole", full=True)
    # Of the server what its thread has spent, and of the browser a good quarter of the updates: by the clock, the
    # simulator and whatever else this machine does would be counted in. `unbroken bench page` has all of them.
    spent, quick = statistics.median(stage.feed.cpu_ms), statistics.quantiles(taken, n=4)[0]
    print(f"an update takes {spent:.1f} ms of the server and {quick:.1f} ms in the browser")
    assert spent < LIMIT_MS
    assert quick < LIMIT_MS


def test_on_a_phone(browser: Browser, stage: Stage) -> None:
    with visited(browser, stage.url, PHONE) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        shot(tab, "many-phone")
