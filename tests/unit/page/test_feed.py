"""One look for all viewers: the newest for everybody, samples for those who lack them, and nothing that stops it."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from kit.page.aging_flow import Flow
from kit.page.flows import dead, states
from kit.support import wait_until
from unbroken.errors import UnbrokenError
from unbroken.page import feed as module
from unbroken.page.document import PageFacts
from unbroken.page.feed import Known, PageFeed
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.placement import NodeReady


def parsed(feed: PageFeed, known: Known) -> tuple[dict[str, Any], Known]:
    assert feed.latest is not None
    text, after = feed.latest.since(known)
    return json.loads(text), after


def test_the_first_update_has_everything() -> None:
    feed = PageFeed(Flow().look, PageFacts(actions=("drain",), version="1"))
    feed.turn()
    feed.turn()
    update, known = parsed(feed, Known())
    assert update["whole"] is True
    assert update["samples"]["number"] == [1, 2]
    assert update["view"]["flow"] == "clicks"
    assert update["history"][0]["kind"] == "first_layout"
    assert update["marks"] == []
    assert update["page"] == {"actions": ["drain"], "simulated": False, "token_hint": "", "version": "1"}
    assert known == Known(update=2, sample=2, story=1)


def test_the_next_one_has_what_is_new() -> None:
    flow = Flow()
    feed = PageFeed(flow.look)
    feed.turn()
    _, known = parsed(feed, Known())
    feed.turn()
    feed.turn()
    update, known = parsed(feed, known)
    assert (update["whole"], update["samples"]["number"]) == (False, [2, 3])
    assert "history" not in update and "marks" not in update
    flow.found = states() | {"c": dead("c")}
    feed.turn()
    update, known = parsed(feed, known)
    assert [mark["effect"] for mark in update["marks"]] == ["loss"]
    last = update["history"][-1]
    assert (last["kind"], last["severity"], last["effect"]) == ("node_dead", "error", "loss")
    assert last["fields"] == {"node": "c", "detail": "killed by signal 9"} and last["text"]
    assert last["node"] == "page" and last["named"]
    assert update["view"]["redundancy"]["whole"] is False


def test_a_slow_viewer_gets_the_newest_and_all_samples() -> None:
    feed = PageFeed(Flow().look)
    viewer = feed.join(lambda: None)
    feed.turn()
    _, known = parsed(feed, Known())
    for _ in range(5):
        feed.turn()
    update = viewer.take(known)
    assert update is not None and update is feed.latest
    assert json.loads(update.since(known)[0])["samples"]["number"] == [2, 3, 4, 5, 6]
    assert viewer.take(update.since(known)[1]) is None, "it is not given the same twice"


@pytest.mark.parametrize("known", [Known(99, 99, 99), Known(1, 0, 1)])
def test_a_viewer_of_another_page_gets_everything(known: Known) -> None:
    feed = PageFeed(Flow().look)
    feed.turn()
    update, _ = parsed(feed, known)
    assert update["whole"] is True and update["samples"]["number"] == [1]


def test_a_viewer_that_was_away_for_too_long_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = PageFeed(Flow().look)
    feed.turn()
    _, known = parsed(feed, Known())
    for _ in range(module.Series().samples.maxlen or 0):
        feed._series.look(feed._seen())
    feed.turn()
    update, _ = parsed(feed, known)
    assert update["whole"] is True


def test_an_error_is_shown_with_what_was_seen_last(caplog: pytest.LogCaptureFixture) -> None:
    flow = Flow()
    feed = PageFeed(flow.look)
    feed.turn()
    flow.error = UnbrokenError("no ZooKeeper answers\nat all")
    feed.turn()
    update, _ = parsed(feed, Known())
    assert update["view"]["trouble"] == "no ZooKeeper answers"
    assert len(update["view"]["nodes"]) == 3
    assert not caplog.records
    flow.error = KeyError("a bug")
    feed.turn()
    assert parsed(feed, Known())[0]["view"]["trouble"] == "'a bug'"
    assert caplog.records, "what is no error of ours is logged with its trace"
    flow.error = None
    feed.turn()
    assert parsed(feed, Known())[0]["view"]["trouble"] == ""


def test_it_looks_rarely_while_nobody_watches() -> None:
    flow = Flow()
    feed = PageFeed(flow.look, period_s=0.01, idle_period_s=60.0)
    feed.start()
    wait_until(lambda: flow.looks == 1, 30, "the first look")
    woken = threading.Event()
    viewer = feed.join(woken.set)
    wait_until(lambda: flow.looks >= 5, 30, "looks for a viewer")
    assert woken.is_set()
    viewer.close()
    wait_until(lambda: not feed._viewers, 30, "the viewer to be gone")
    assert feed.close()


def test_something_that_was_done_is_looked_at_at_once() -> None:
    flow = Flow()
    feed = PageFeed(flow.look, period_s=60.0, idle_period_s=60.0)
    feed.start()
    wait_until(lambda: flow.looks == 1, 30, "the first look")
    feed.hurry()
    wait_until(lambda: flow.looks == 2, 30, "the next look")
    assert feed.close()


def test_what_cannot_be_shown_does_not_stop_it(caplog: pytest.LogCaptureFixture) -> None:
    flow = Flow()
    flow.found = {"a": {"node": "a", "state": "running", "replicas": [{"replica": "nonsense"}]}}
    feed = PageFeed(flow.look, period_s=0.01, idle_period_s=0.01)
    feed.start()
    wait_until(lambda: flow.looks >= 3, 30, "looks after one that failed")
    assert feed.latest is None
    flow.found = states()
    wait_until(lambda: feed.latest is not None, 30, "an update")
    assert feed.close()


def test_closing_lets_viewers_go() -> None:
    feed = PageFeed(Flow().look, period_s=60.0)
    feed.start()
    woken = threading.Event()
    viewer = feed.join(woken.set)
    wait_until(lambda: feed.latest is not None, 30, "an update")
    woken.clear()
    assert feed.close()
    assert viewer.ended and woken.is_set()
    with pytest.raises(UnbrokenError):
        feed.join(lambda: None)


def test_there_are_not_too_many_viewers() -> None:
    feed = PageFeed(Flow().look)
    viewers = [feed.join(lambda: None) for _ in range(module.MOST_VIEWERS)]
    with pytest.raises(UnbrokenError, match="pages are open"):
        feed.join(lambda: None)
    viewers[0].close()
    feed.join(lambda: None)


def test_the_reporting_node_is_named_by_the_fields_of_a_notice() -> None:
    feed = PageFeed(Flow().look)
    reports = [Reported(1, "a", NodeReady("a")), Reported(2, "b", NodeReady("a")), Reported(3, "page", NodeReady("a"))]
    assert [feed._entry(one).named for one in reports] == [True, False, True]
