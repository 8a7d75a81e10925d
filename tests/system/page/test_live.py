"""The page of two real nodes in a real browser: one is killed from the page, and everything is seen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kit.page import browsing
from kit.page.browsing import shot, visited
from kit.support import wait_until
from unbroken.local.launcher import LocalCluster
from unbroken.page.page import PageOptions, page_of_flow, page_of_run
from unbroken.testing.injection.by_hand import faults_by_hand

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.chromium, pytest.mark.cluster, pytest.mark.timeout(900)]

FLOW = Path(__file__).with_name("live_flow.py")
PATIENCE_MS = 240_000.0


@pytest.fixture
def browser() -> Iterator[Browser]:
    with browsing.browser() as found:
        yield found


class Tended:
    """A cluster whose dead nodes are started again, as `unbroken run` does."""

    def __init__(self, directory: Path) -> None:
        self.cluster = LocalCluster(FLOW, directory)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._tend, daemon=True)

    def __enter__(self) -> LocalCluster:
        self.cluster.start()
        self.cluster.wait_ready(300)
        self._thread.start()
        return self.cluster

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self.cluster.stop()

    def _tend(self) -> None:
        while not self._closed.wait(0.5):
            self.cluster.tend()


def test_a_node_is_killed_from_the_page(browser: Browser, tmp_path: Path) -> None:
    def wait(condition: str) -> None:
        tab.wait_for_function(condition, timeout=PATIENCE_MS)

    with (
        Tended(tmp_path / "run") as cluster,
        page_of_run(cluster, PageOptions(faults=faults_by_hand)) as page,
        visited(browser, page.url) as tab,
    ):
        wait("() => document.getElementById('banner').dataset.state === 'whole'")
        wait("() => document.querySelectorAll('.chart path.b[d]').length === 2")
        assert tab.locator(".cell.s-active").count() == 4, "two of the ingress, two of the segment"
        tab.click(".part[data-part=counts] .cell >> nth=0")
        wait("() => document.querySelector('#inspector .parts').innerText.includes('query ')")
        tab.keyboard.press("Escape")
        tab.click('#nodes tr[data-node="node-2"] button[data-action="kill"]')
        tab.fill("#confirm-token", cluster.token)
        tab.click("#confirm-yes")
        wait("() => document.querySelector('.cell.s-dead')")
        wait("() => document.querySelector('.chart .mark.k-loss')")
        assert tab.get_attribute("#banner", "data-state") == "short"
        assert "node-1 has the last replica" in tab.inner_text("#banner")
        shot(tab, "real-killed")
        wait("() => document.getElementById('banner').dataset.state === 'whole'")
        gaps = tab.evaluate("(async () => (await (await fetch('/api/state')).json()).samples.gap_ms)()")
        assert tab.locator("#history li[data-kind=shard_redundant]").count() >= 1
        assert max(gap for gap in gaps if gap is not None) < 60_000, "results went on"
        shot(tab, "real-back")
        # Somebody else looks at the same flow over ZooKeeper alone, as `unbroken ui` does.
        with (
            page_of_flow(cluster.zookeeper.address, cluster.flow.name, cluster.token, PageOptions()) as other,
            visited(browser, other.url) as seen,
        ):
            assert seen.inner_text("#flow") == "counts"
            assert seen.locator("button[data-action=kill]").count() == 0, "that is for demonstrations"


def test_a_run_serves_its_page(tmp_path: Path) -> None:
    """`unbroken run` says where its page is, and the page is gone with it."""
    command = [sys.executable, "-m", "unbroken", "run", str(FLOW), "--dir", str(tmp_path / "run"), "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            events = (json.loads(line) for line in process.stdout)
            url = next(event["page"] for event in events if "page" in event)
            seen: dict[str, Any] = {}

            def whole() -> bool:
                try:
                    with urllib.request.urlopen(f"{url}api/state", timeout=30) as answer:
                        seen.update(json.load(answer)["view"])
                except urllib.error.HTTPError as error:
                    assert error.code == 503, "the page has not looked at the flow yet"
                    return False
                return bool(seen["redundancy"]["whole"])

            wait_until(whole, 120, lambda: f"redundancy: {seen.get('redundancy')}", interval_s=0.5)
            assert {node["state"] for node in seen["nodes"]} == {"running"}
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            process.kill()
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=5)
