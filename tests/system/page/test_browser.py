"""The page in a real browser, fed by the simulator: what is seen, what is done, with a keyboard and on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from kit.page import browsing
from kit.page.browsing import DESKTOP, PHONE, Stage, shot, visited
from kit.page.serving import TOKEN
from unbroken.page.actions import ActionRequest
from unbroken_lab.page.stages import SPARK, flow_of, shop
from unbroken_lab.sim.flows import chain

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.chromium, pytest.mark.servers]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing.browser() as found:
        yield found


def small() -> Stage:
    """Three nodes with a chain of two segments; seconds pass four times as fast."""
    return Stage(flow_of(chain((2, 1)), 3, "small", 2_000.0, SPARK))


@pytest.fixture(scope="module")
def calm(browser: Browser) -> Iterator[Stage]:
    """A flow that is only looked at."""
    found = small()
    yield found
    found.close()


@pytest.fixture
def tab(browser: Browser, calm: Stage) -> Iterator[Page]:
    """Its page."""
    with visited(browser, calm.url) as found:
        yield found


@pytest.fixture
def stage(browser: Browser) -> Iterator[Stage]:
    """A flow to which something is done."""
    found = small()
    yield found
    found.close()


@pytest.fixture
def page(browser: Browser, stage: Stage) -> Iterator[Page]:
    """Its page."""
    with visited(browser, stage.url) as found:
        yield found


UNKNOWN = "\u2013"
"""What stands for a value that is not known."""


def wait(tab: Page, condition: str, argument: Any = None) -> None:
    """Wait until a condition in the page is true."""
    tab.wait_for_function(condition, arg=argument, timeout=browsing.DEADLINE_MS)


def counted(tab: Page, look: str) -> int:
    return int(tab.locator(f"#legend li.s-{look} b").inner_text())


def focused(tab: Page) -> str:
    """What has the focus, by its id or its class."""
    return str(tab.evaluate("document.activeElement.id || document.activeElement.className"))


def do(tab: Page, action: str, node: str) -> None:
    """Press a button of a node and confirm it with the token."""
    tab.click(f'#nodes tr[data-node="{node}"] button[data-action="{action}"]')
    if tab.locator("#confirm-token").is_visible():
        tab.fill("#confirm-token", TOKEN)
    tab.click("#confirm-yes")
    wait(tab, "() => !document.getElementById('confirm').open")


def test_a_flow_is_shown(tab: Page) -> None:
    assert tab.inner_text("#flow") == "small"
    assert [part.get_attribute("data-part") for part in tab.locator(".part").all()] == ["ingress", "s0", "s1", "sink"]
    assert tab.locator(".cell").count() == 8
    wait(tab, "() => document.getElementById('banner').dataset.state === 'whole'")
    assert "Any node may be lost." in tab.inner_text("#banner")
    assert counted(tab, "active") == 8
    assert tab.locator(".edges path").count() == 3
    assert tab.locator("#replicas tr").count() == 8
    assert tab.locator("#nodes tr").count() == 3
    assert tab.locator("#history li").count() >= 1
    assert tab.inner_text("#connection") == "live"
    assert tab.title() == "small: redundant"


def test_a_replica_is_told_by_colour_shape_and_word(tab: Page) -> None:
    cell = tab.locator(".cell").first
    assert re.fullmatch(r"ingress\.0#0 on node-\d: active \(.*\)", cell.get_attribute("aria-label") or "")
    assert cell.locator("use").get_attribute("href") == "#g-active"
    assert cell.inner_text().startswith("node-")
    shapes = tab.evaluate("[...document.querySelectorAll('symbol[id^=g-]')].map((one) => one.innerHTML)")
    assert len(set(shapes)) == len(shapes) == 8


def test_charts_move_on(tab: Page) -> None:
    wait(tab, "() => document.querySelectorAll('.chart path.a[d]').length === 4")
    before = tab.locator(".chart path.a").first.get_attribute("d")
    wait(tab, "(before) => document.querySelector('.chart path.a').getAttribute('d') !== before", before)
    assert re.search(r"[\d,]+ rows/s in", tab.locator(".chart .values").first.inner_text().replace("\n", " "))
    tab.click("#ranges button:has-text('30 min')")
    assert tab.get_attribute("#ranges button:has-text('30 min')", "aria-checked") == "true"


def test_a_node_is_killed_from_the_page_and_comes_back(page: Page) -> None:
    page.click('#nodes tr[data-node="node-2"] button[data-action="kill"]')
    assert page.inner_text("#confirm-title") == "Kill node-2?"
    page.fill("#confirm-token", "wrong")
    page.click("#confirm-yes")
    wait(page, "() => document.getElementById('confirm-error').textContent.includes('token')")
    assert page.locator("#confirm").is_visible(), "nothing was done"
    page.fill("#confirm-token", TOKEN)
    shot(page, "confirm")
    page.click("#confirm-yes")
    wait(page, "() => document.getElementById('toast').textContent.includes('node-2 was killed')")
    wait(page, "() => document.querySelectorAll('.cell.s-dead').length >= 2")
    assert "dead" in (page.locator(".cell.s-dead").first.get_attribute("aria-label") or "")
    assert page.get_attribute("#banner", "data-state") == "short"
    wait(page, "() => document.querySelectorAll('.chart .mark.k-loss').length === 4")
    assert page.locator("#history li.k-loss.s-error[data-kind=node_dead]", has_text="node-2").count() == 1
    shot(page, "killed")
    wait(page, "() => document.querySelector('.cell.s-joining')")
    wait(page, "() => document.getElementById('banner').dataset.state === 'whole'")
    wait(page, "() => document.querySelector('.chart .mark.k-repair')")
    assert page.locator("#history li.k-repair[data-kind=shard_redundant]").count() >= 1
    assert "is redundant" in page.inner_text("#announcer") or "Redundant" in page.inner_text("#announcer")


def test_a_node_is_frozen_drained_and_let_go_on(page: Page) -> None:
    do(page, "freeze", "node-3")
    wait(page, "() => document.querySelector('.cell.s-suspected')")
    assert "frozen" in page.inner_text('#nodes tr[data-node="node-3"]')
    do(page, "thaw", "node-3")
    wait(page, "() => !document.querySelector('.cell.s-suspected')")
    wait(page, "() => document.getElementById('banner').dataset.state === 'whole'")
    do(page, "drain", "node-3")
    wait(page, "() => document.querySelector('#nodes tr[data-node=\"node-3\"]').textContent.includes('being drained')")
    assert page.locator('#nodes tr[data-node="node-3"] button[data-action="undrain"]').count() == 1


def test_a_replica_is_inspected_and_built_again(page: Page) -> None:
    page.click("#replicas tr:has-text('s1.0#') button.link >> nth=0")
    name = page.inner_text("#inspector-title")
    assert name.startswith("s1.0#")
    assert page.locator("#inspector .peers li").count() == 1
    text = page.inner_text("#inspector")
    assert all(word in text for word in ("units produced", "size of its state", "last micro-batch", "query "))
    assert page.locator(f'.cell[data-replica="{name}"]').get_attribute("aria-expanded") == "true"
    page.click("#inspector button[data-action=reinit]")
    page.fill("#confirm-token", TOKEN)
    page.click("#confirm-yes")
    wait(page, '(name) => !document.querySelector(`.cell[data-replica="${name}"]`)', name)
    wait(page, "() => document.querySelector('#inspector .state').textContent === 'gone'")


def test_everything_can_be_done_with_a_keyboard(tab: Page) -> None:
    tab.keyboard.press("Tab")
    assert focused(tab) == "skip"
    tab.keyboard.press("Enter")
    assert focused(tab) == "main"
    tab.keyboard.press("Tab")
    assert focused(tab).startswith("cell"), "the graph is one stop"
    first = tab.evaluate("document.activeElement.dataset.replica")
    tab.keyboard.press("ArrowRight")
    second = tab.evaluate("document.activeElement.dataset.replica")
    assert focused(tab).startswith("cell") and second != first
    tab.keyboard.press("ArrowLeft")
    assert tab.evaluate("document.activeElement.dataset.replica") == first
    tab.keyboard.press("End")
    last = tab.evaluate("document.activeElement.dataset.replica")
    assert str(last).startswith("s1.0")
    assert tab.locator('.cell[tabindex="0"]').count() == 1
    tab.keyboard.press("Enter")
    assert focused(tab) == "inspector"
    assert tab.inner_text("#inspector-title") == last
    tab.keyboard.press("Escape")
    assert tab.locator("#inspector").is_hidden()
    assert tab.evaluate("document.activeElement.dataset.replica") == last, "the focus is where it was"


OPENED_TWICE = """() => {
  const button = document.querySelector('#nodes tr[data-node="node-2"] button[data-action="drain"]');
  button.click();
  document.getElementById('confirm-token').value = 'of the first time';
  document.getElementById('confirm').close();
  button.click();
}"""
"""The event of a dialog that has closed comes later than the dialog is opened again."""


def test_a_dialog_that_is_opened_again_at_once_still_knows_what_it_asks(page: Page) -> None:
    page.evaluate(OPENED_TWICE)
    assert page.locator("#confirm").is_visible()
    assert page.locator("#confirm-token").input_value() == ""
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    wait(page, "() => document.getElementById('toast').textContent.includes('node-2 is to be left')")


ANSWER_LATER = """() => {
  const fetched = window.fetch;
  window.fetch = (...asked) => new Promise((give) => { window.answer = () => give(fetched(...asked)); });
}"""


def test_an_answer_that_comes_late_leaves_the_next_dialog_open(page: Page) -> None:
    page.evaluate(ANSWER_LATER)
    page.click('#nodes tr[data-node="node-2"] button[data-action="drain"]')
    page.fill("#confirm-token", TOKEN)
    page.click("#confirm-yes")
    page.click("#confirm-no")
    page.click('#nodes tr[data-node="node-3"] button[data-action="kill"]')
    assert page.locator("#confirm-yes").is_enabled()
    page.evaluate("window.answer()")
    wait(page, "() => document.getElementById('toast').textContent.includes('node-2 is to be left')")
    assert page.locator("#confirm").is_visible()
    assert page.inner_text("#confirm-title") == "Kill node-3?"


def test_a_dialog_with_a_keyboard(page: Page) -> None:
    page.focus('#nodes tr[data-node="node-2"] button[data-action="drain"]')
    page.keyboard.press("Enter")
    assert focused(page) == "confirm-token"
    page.keyboard.press("Escape")
    assert page.locator("#confirm").is_hidden()
    assert page.evaluate("document.activeElement.dataset.action") == "drain"
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    wait(page, "() => document.getElementById('confirm-error').textContent === 'The token is needed.'")
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    wait(page, "() => document.getElementById('toast').textContent.includes('node-2 is to be left')")
    assert page.locator("#confirm-token").input_value() == "", "the token is in no field any more"


def test_the_time_axis_with_a_keyboard(tab: Page) -> None:
    wait(tab, "() => document.querySelectorAll('.chart path.a[d]').length === 4")
    tab.locator(".chart svg").first.focus()
    tab.keyboard.press("ArrowLeft")
    assert re.fullmatch(r"\d\d:\d\d:\d\d", tab.inner_text("#readout").strip())
    tab.keyboard.press("ArrowLeft")
    assert tab.locator(".chart .cross:not([visibility])").count() == 4, "all charts show the same moment"
    tab.keyboard.press("Escape")
    assert tab.inner_text("#readout").strip() == ""
    assert "Left and right arrow keys" in (tab.locator(".chart svg").first.get_attribute("aria-label") or "")


def test_what_is_shown_can_be_narrowed_down(tab: Page) -> None:
    tab.fill("#replicas-search", "s1.0")
    wait(tab, "() => document.querySelectorAll('#replicas tr').length === 2")
    tab.check("#replicas-unwell")
    wait(tab, "() => document.querySelectorAll('#replicas tr').length === 0")
    assert tab.locator("#replicas-empty").is_visible()
    tab.check("#history-filter")
    assert tab.locator("#history li.k-note").count() == 0


def test_every_control_has_a_name_and_every_field_a_label(tab: Page) -> None:
    nameless = tab.evaluate(
        """() => [...document.querySelectorAll('button, input, [tabindex="0"]')].filter((node) => {
            const label = node.closest('label') || (node.labels && node.labels[0]);
            return !(node.getAttribute('aria-label') || node.textContent.trim() || (label && label.textContent.trim()));
        }).map((node) => node.outerHTML)"""
    )
    assert nameless == []
    assert tab.locator("h1").count() == 1
    assert tab.get_attribute("html", "lang") == "en"


CONTRAST = """() => {
    const style = getComputedStyle(document.documentElement);
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgb = (name) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = style.getPropertyValue(name);
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const light = (name) => {
        const [r, g, b] = rgb(name).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const states = ['active', 'standby', 'joining', 'waiting', 'tentative', 'suspected', 'dead'];
    const pairs = [['--text', '--card'], ['--muted', '--card'], ['--muted', '--bg'], ['--missing', '--card']];
    for (const state of states) pairs.push([`--${state}`, `--${state}-bg`], [`--${state}`, '--card']);
    return pairs.map(([one, other]) => {
        const [a, b] = [light(one), light(other)].sort((x, y) => y - x);
        return [one, other, (a + 0.05) / (b + 0.05)];
    });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_told_apart_from_what_they_stand_on(browser: Browser, calm: Stage, scheme: str) -> None:
    with visited(browser, calm.url, scheme=scheme) as tab:
        faint = [(one, other, round(ratio, 2)) for one, other, ratio in tab.evaluate(CONTRAST) if ratio < 4.5]
        assert faint == []


def test_on_a_phone(browser: Browser, stage: Stage) -> None:
    with visited(browser, stage.url, PHONE) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        boxes = [part.bounding_box() for part in tab.locator(".part").all()]
        tops = [box["y"] for box in boxes if box is not None]
        assert tops == sorted(tops) and len(set(tops)) == 4, "the flow goes downwards"
        cell = tab.locator(".cell").first.bounding_box()
        assert cell is not None and cell["height"] >= 26, "large enough for a finger"
        size = tab.evaluate("parseFloat(getComputedStyle(document.querySelector('#replicas td')).fontSize)")
        assert size >= 12
        tab.locator(".cell").first.click()
        panel = tab.locator("#inspector").bounding_box()
        assert panel is not None and panel["width"] <= PHONE["width"]
        tab.keyboard.press("Escape")
        do(tab, "kill", "node-2")
        wait(tab, "() => document.querySelector('.cell.s-dead')")
        tab.evaluate("scrollTo(0, 0)")
        shot(tab, "phone")
        shot(tab, "phone-whole", full=True)


def test_a_page_whose_server_goes_away_says_so_and_goes_on(browser: Browser, stage: Stage) -> None:
    with visited(browser, stage.url) as tab:
        stage.interrupt()
        wait(tab, "() => document.getElementById('connection').dataset.state === 'lost'")
        assert tab.inner_text("#connection").startswith("no answer since")
        assert tab.evaluate("document.body.classList.contains('stale')")
        stage.resume()
        wait(tab, "() => document.getElementById('connection').dataset.state === 'live'")
        assert not tab.evaluate("document.body.classList.contains('stale')")


def test_numbers_and_times_as_a_person_reads_them(tab: Page) -> None:
    said = tab.evaluate(
        """async () => {
            const { bytes, count, elapsed, rate, span } = await import('/static/format.js');
            return {
                count: [0, 950, 12345, 1234567, 45678901, 987654321, null].map(count),
                rate: [0, 2.345, 42.4, 12345].map(rate),
                span: [0, 350, 2440, 59900, 185000, 7800000, 4e8, undefined].map(span),
                elapsed: [999, 42400, 61000].map(elapsed),
                bytes: [0, 999, 1200, 45000000, 2.5e12, null].map(bytes),
            };
        }"""
    )
    assert said == {
        "count": ["0", "950", "12,345", "1.23 M", "45.7 M", "988 M", UNKNOWN],
        "rate": ["0", "2.3", "42", "12,345"],
        "span": ["0 ms", "350 ms", "2.4 s", "60 s", "3 min 5 s", "2 h 10 min", "5 days", UNKNOWN],
        "elapsed": ["0 s", "42 s", "1 min 1 s"],
        "bytes": ["0 B", "999 B", "1.2 kB", "45 MB", "2.5 TB", UNKNOWN],
    }


def test_samples_are_kept_up_to_a_bound(tab: Page) -> None:
    found = tab.evaluate(
        """async () => {
            const { Samples } = await import('/static/samples.js');
            const samples = new Samples();
            const some = (from, to) => ({ time_ms: Array.from({ length: to - from }, (_, i) => (from + i) * 1000) });
            samples.add(some(0, 1500), true);
            samples.add(some(1500, 2000), false);
            const near = [1000400, -5, 9e9].map((time) => samples.nearest(time));
            const kept = [samples.length, samples.time(0), ...near];
            samples.add(some(5, 8), true);
            return [...kept, samples.length, samples.firstAfter(6500), new Samples().nearest(5)];
        }"""
    )
    assert found == [1800, 200_000, 800, 0, 1799, 3, 2, None]


def test_pictures_of_a_flow_in_trouble(browser: Browser) -> None:
    stage = Stage(shop(), warm_up_s=20)
    try:
        with (
            visited(browser, stage.url, DESKTOP) as light,
            visited(browser, stage.url, DESKTOP, "dark") as dark,
        ):
            wait(light, "() => document.querySelectorAll('.chart path.b[d]').length === 2")
            stage.flow.do(ActionRequest("kill", "node-2"))
            wait(light, "() => document.querySelector('.cell.s-joining')")
            stage.flow.do(ActionRequest("freeze", "node-5"))
            wait(light, "() => document.querySelector('.cell.s-suspected')")
            shot(light, "page")
            shot(dark, "page-dark")
            shot(light, "page-whole", full=True)
    finally:
        stage.close()
