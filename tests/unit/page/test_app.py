"""The page over HTTP, as a browser and others see it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest

from kit.page.aging_flow import Flow
from kit.page.serving import TOKEN, Client, Events, served
from kit.support import wait_until
from unbroken.errors import Refused, UnbrokenError
from unbroken.page import app as module
from unbroken.page.actions import ActionRequest
from unbroken.page.app import STATIC
from unbroken.page.document import PageFacts
from unbroken.page.feed import PageFeed
from unbroken.page.server import PageServer


class Deeds:
    """Actions that are only noted."""

    offered = ("drain", "kill")

    def __init__(self) -> None:
        self.done: list[ActionRequest] = []
        self.hold = threading.Event()
        self.hold.set()

    def do(self, wish: ActionRequest) -> str:
        self.hold.wait(20)
        if wish.node == "nobody":
            raise Refused("flow clicks has no node 'nobody'")
        self.done.append(wish)
        return f"{wish.action} {wish.node}"


@pytest.fixture
def flow() -> Flow:
    return Flow()


@pytest.fixture
def feed(flow: Flow) -> PageFeed:
    return PageFeed(flow.look, period_s=0.05, idle_period_s=60.0)


@pytest.fixture
def deeds() -> Deeds:
    return Deeds()


@pytest.fixture
def page(feed: PageFeed, deeds: Deeds) -> Iterator[Client]:
    with served(feed, deeds) as client:
        yield client


def test_the_page_and_its_parts_are_there(page: Client) -> None:
    index = page.get("/")
    assert index.code == 200 and b'src="/static/main.js"' in index.body
    for file in STATIC.iterdir():
        answer = page.get(f"/static/{file.name}")
        assert answer.code == 200, file.name
        assert answer.body == file.read_bytes()
    assert page.get("/static/main.js").headers["content-type"].startswith("text/javascript")
    assert page.get("/static/../app.py").code == 404
    assert page.get("/nothing").code == 404


def test_nothing_is_loaded_from_elsewhere() -> None:
    for file in STATIC.iterdir():
        text = file.read_text()
        for scheme in ("https://", "http://", '"//', "'//"):
            found = [line for line in text.splitlines() if scheme in line and "http://www.w3.org/" not in line]
            assert not found, f"{file.name} names another place: {found}"


def test_every_answer_is_guarded(page: Client) -> None:
    for path in ("/", "/static/main.js", "/api/state", "/nothing"):
        headers = page.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers


def test_inline_scripts_and_styles_are_not_needed() -> None:
    text = (STATIC / "index.html").read_text()
    assert " style=" not in text and " onclick=" not in text and "<style" not in text
    assert text.count("<script") == 1


def test_a_page_under_a_strange_name_is_refused(page: Client) -> None:
    assert page.get("/api/state", Host="evil.example").code == 421
    assert page.get("/", Host="localhost:1234").code == 200


def test_the_state_for_programs(page: Client, feed: PageFeed) -> None:
    assert page.get("/api/state").code == 503
    feed.turn()
    answer = page.get("/api/state")
    assert answer.code == 200
    assert answer.json()["view"]["flow"] == "clicks"
    assert answer.json()["whole"] is True


def test_updates_come_as_events(page: Client, feed: PageFeed) -> None:
    feed.start()
    events = Events(page.server)
    assert events.response.getheader("content-type", "").startswith("text/event-stream")
    first, second = events.next(), events.next()
    assert first["whole"] is True and "history" in first
    assert second["whole"] is False and "history" not in second
    assert second["samples"]["number"][0] == first["samples"]["number"][-1] + 1
    events.close()
    wait_until(lambda: not feed._viewers, 20, "the viewer to be forgotten")


def test_the_end_of_the_feed_ends_the_events(page: Client, feed: PageFeed) -> None:
    feed.start()
    events = Events(page.server)
    events.next()
    feed.close()
    with pytest.raises(EOFError):
        while True:
            events.next()


def test_a_sign_of_life_when_there_is_no_news(page: Client, feed: PageFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_ALIVE_S", 0.05)
    events = Events(page.server)
    lines = [events.response.readline() for _ in range(4)]
    assert b": still here\n" in lines
    events.close()


def test_too_many_viewers_are_told_so(page: Client, feed: PageFeed) -> None:
    viewers = [feed.join(lambda: None) for _ in range(64)]
    answer = page.get("/api/events")
    assert answer.code == 503 and "close one" in answer.json()["error"]
    for viewer in viewers:
        viewer.close()


def test_an_action_with_the_token_is_done(page: Client, deeds: Deeds) -> None:
    answer = page.act("drain", {"node": "node-2"})
    assert (answer.code, answer.json()) == (200, {"said": "drain node-2"})
    assert deeds.done == [ActionRequest("drain", "node-2")]


def test_an_action_is_seen_at_once(page: Client, feed: PageFeed, flow: Flow) -> None:
    feed.start()
    wait_until(lambda: flow.looks == 1, 30, "the first look")
    page.act("drain", {"node": "node-2"})
    wait_until(lambda: flow.looks == 2, 30, "another look")


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "s", "sésame"])
def test_without_the_token_nothing_is_done(page: Client, deeds: Deeds, token: str) -> None:
    answer = page.act("drain", {"node": "node-2"}, X_Unbroken_Token=token)
    assert answer.code == 401 and not deeds.done


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Host": "evil.example"}, 421),
    ],
)
def test_another_site_cannot_do_anything(page: Client, deeds: Deeds, headers: dict[str, str], code: int) -> None:
    assert page.act("drain", {"node": "node-2"}, **headers).code == code
    assert not deeds.done


@pytest.mark.parametrize(
    "body", [b"", b"not json", b"[]", b'"x"', b"{}", b'{"node": 5}', b'{"node": ""}', b"x" * 9_000]
)
def test_what_makes_no_sense_is_refused(page: Client, deeds: Deeds, body: bytes) -> None:
    answer = page.act("drain", body)
    assert answer.code == 400 and answer.json()["error"] and not deeds.done


def test_what_cannot_be_done_is_explained(page: Client) -> None:
    answer = page.act("drain", {"node": "nobody"})
    assert (answer.code, answer.json()) == (409, {"error": "flow clicks has no node 'nobody'"})


def test_an_action_that_hangs_is_given_up_on(page: Client, deeds: Deeds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACTION_DEADLINE_S", 0.1)
    deeds.hold.clear()
    answer = page.act("drain", {"node": "node-2"})
    deeds.hold.set()
    assert answer.code == 504 and "see the history" in answer.json()["error"]


def test_actions_are_not_for_get(page: Client, deeds: Deeds) -> None:
    assert page.get("/api/actions/drain", X_Unbroken_Token=TOKEN).code == 405
    assert not deeds.done


def test_a_port_that_is_taken(page: Client, feed: PageFeed) -> None:
    second = PageServer(lambda *_: None, port=page.server.port)  # type: ignore[arg-type, return-value]
    with pytest.raises(UnbrokenError, match="Choose another port"):
        second.start()
    assert second.stop()


def test_the_address_of_a_page() -> None:
    assert PageServer(None, "0.0.0.0", 80).url == "http://127.0.0.1:80/"  # type: ignore[arg-type]
    assert PageServer(None, "::1", 80).url == "http://[::1]:80/"  # type: ignore[arg-type]


def test_a_server_ends_with_a_viewer_still_there(feed: PageFeed, deeds: Deeds) -> None:
    with served(feed, deeds) as client:
        feed.start()
        events = Events(client.server)
        events.next()
        feed.close()
        assert client.server.stop(10.0)
    events.close()


def test_an_update_is_one_line() -> None:
    """What a node says may have line breaks; in an event they would end it."""
    feed = PageFeed(Flow().look, PageFacts(token_hint="two\nlines\r\nor three"))
    text, _ = feed.turn().since(module.Known())
    assert "\n" not in text and "\r" not in text
    assert json.loads(text)["page"]["token_hint"] == "two\nlines\r\nor three"
