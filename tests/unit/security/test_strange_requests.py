"""Whatever a stranger asks over HTTP is answered: no handler that asks for no token raises. No sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp

from kit.statuses import running
from kit.support import TOKEN
from unbroken.connectors.push.http import PushOutcome, PushServer
from unbroken.connectors.push.source import Push
from unbroken.observe.metrics.server import MetricsServer
from unbroken.page.actions import TOKEN_HEADER, NoActions, TokenCheck
from unbroken.page.app import make_app
from unbroken.page.feed import PageFeed
from unbroken.security.challenge import LONGEST, Doorkeeper, NotProven, Producer

HERE = "127.0.0.1:7070"
LONE = "\ud800"
NAMES = ("nonce", "address", "answer", "proof")

text = st.text(st.characters() | st.sampled_from([LONE, "\udfff", "\0", "[", ":"]), max_size=2 * LONGEST)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text | st.just(HERE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
questions = st.dictionaries(st.sampled_from(NAMES), values) | st.fixed_dictionaries(
    {"nonce": text, "address": st.just(HERE) | text}, optional={"answer": text, "proof": text}
)


def ask(
    app: ASGIApp, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and body of the answer, as uvicorn would ask for it; what the application raises is raised here."""
    path, _, query = target.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()],
        "client": ("127.0.0.9", 1),
        "server": ("127.0.0.1", 7070),
    }
    sent: list[dict[str, Any]] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    asyncio.run(cast(Any, app)(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def push_app() -> ASGIApp:
    def submit(batch: object, timeout_s: float) -> PushOutcome:
        pytest.fail("a stranger pushed")

    return PushServer("127.0.0.1", 7070, TOKEN, submit, sources={"pushed": Push("n long")}).app


def metrics_app() -> ASGIApp:
    return MetricsServer("127.0.0.1", 0, "flow", "n1", status=running, silence_s=lambda: 0.0).app


def page_app() -> ASGIApp:
    return make_app(cast(PageFeed, _NoFeed()), NoActions(), TokenCheck(TOKEN))


class _NoFeed:
    latest = None


PUSH, METRICS, PAGE = push_app(), metrics_app(), page_app()


@pytest.mark.parametrize("name", NAMES)
def test_a_session_is_refused_to_text_that_has_no_bytes(name: str) -> None:
    question = {"nonce": "n", "address": HERE, "answer": "a", "proof": "p", name: LONE}
    status, body = ask(PUSH, "POST", "/session", json.dumps(question).encode())
    assert status == 400 and json.loads(body)["status"] == "bad-request"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", ["x" * (LONGEST + 1), 5, None, ["x"], {"x": "y"}])
def test_a_session_is_refused_to_what_is_no_text_of_the_length(name: str, value: object) -> None:
    question = {"nonce": "n", "address": HERE, "answer": "a", "proof": "p", name: value}
    assert ask(PUSH, "POST", "/session", json.dumps(question).encode())[0] == 400


def test_a_producer_of_the_flow_gets_a_session() -> None:
    producer = Producer.of(TOKEN, HERE)
    challenge = json.loads(ask(PUSH, "POST", "/session", json.dumps(producer.question()).encode())[1])
    status, body = ask(PUSH, "POST", "/session", json.dumps(producer.answer(challenge)).encode())
    assert status == 200 and json.loads(body)["session"]


@settings(max_examples=150, deadline=None)
@given(values | questions)
def test_any_json_is_answered_by_the_session_handler(question: object) -> None:
    status, body = ask(PUSH, "POST", "/session", json.dumps(question).encode())
    assert status in (200, 400, 401, 421)
    assert json.loads(body)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
@example(b"[" * 4_000)
@example(b'{"nonce":' + b"[" * 2_000 + b"]" * 2_000 + b',"address":"127.0.0.1:7070"}')
@example(b'{"nonce":' + b"9" * 4_000 + b',"address":"127.0.0.1:7070"}')
def test_any_bytes_are_answered_by_the_session_handler(body: bytes) -> None:
    assert ask(PUSH, "POST", "/session", body)[0] in (400, 421)


@given(questions)
def test_the_doorkeeper_says_no_and_nothing_else(question: dict[str, Any]) -> None:
    keeper = Doorkeeper(TOKEN)
    with contextlib.suppress(NotProven):
        assert set(keeper.answer(question)) == {"nonce", "proof"}
    assert not keeper.admits(str(question.get("nonce", "")))


targets = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(
            ["/", "//", "", "/session", "/push/", "/metrics", "/ready", "/live", "/static/", "/api/actions/"]
        ),
        st.text(st.sampled_from("/?&=%[]:;@#.\\0fFdD8a"), max_size=30),
        st.sampled_from(["", "?", "?max_lag=", "?name[]="]),
        st.text(st.sampled_from("%[]:;&=.0fFeEniN8+-sm"), max_size=12),
    ),
)
header_values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=60) | st.sampled_from(
    ["[", "[::1", "a:b:c", ":99999999", "127.0.0.1:x", "bytes=-", "bytes=1-0,9-", "Bearer \xff", "Session \xff"]
)
header_names = st.sampled_from(
    (
        *("Host", "Accept", "Authorization", "Origin", "Range", "If-Range", "If-Modified-Since", "If-None-Match"),
        *("Content-Type", "Content-Length", TOKEN_HEADER, "Sec-Fetch-Site", "X-Producer-Id", "X-Sequence"),
    )
)


@pytest.mark.parametrize("app", [PUSH, METRICS, PAGE], ids=["push", "metrics", "page"])
@settings(max_examples=100, deadline=None)
@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "OPTIONS", "BREW"]),
    target=targets,
    headers=st.dictionaries(header_names, header_values, max_size=5),
)
def test_any_path_and_header_is_answered(app: ASGIApp, method: str, target: str, headers: dict[str, str]) -> None:
    assert ask(app, method, target, headers=headers)[0] != 500
