"""What a page's server asks of every request."""

from __future__ import annotations

import socket

import pytest
from starlette.datastructures import Headers

from unbroken.page.guards import host_name, is_known_host, is_same_origin


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost:8080", "localhost"),
        ("LOCALHOST", "localhost"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("[::1]:8080", "::1"),
        ("::1", "::1"),
        ("pages.example:443", "pages.example"),
        ("", ""),
    ],
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize("header", ["localhost:1", "127.0.0.1:1", "[::1]:1", "10.1.2.3", socket.gethostname()])
def test_hosts_that_are_known(header: str) -> None:
    assert is_known_host(header, ())


@pytest.mark.parametrize("header", ["", "evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil"])
def test_a_name_that_somebody_lets_point_here_is_not_known(header: str) -> None:
    assert not is_known_host(header, ("flows.example",))


def test_further_names_can_be_given() -> None:
    assert is_known_host("Flows.example:80", ("flows.EXAMPLE",))


@pytest.mark.parametrize(
    ("headers", "same"),
    [
        ({"host": "localhost:1"}, True),
        ({"host": "localhost:1", "origin": "http://localhost:1"}, True),
        ({"host": "localhost:1", "origin": "http://localhost:1", "sec-fetch-site": "same-origin"}, True),
        ({"host": "localhost:1", "origin": "http://localhost:2"}, False),
        ({"host": "localhost:1", "origin": "http://evil.example"}, False),
        ({"host": "localhost:1", "origin": "null"}, False),
        ({"host": "localhost:1", "sec-fetch-site": "cross-site"}, False),
        ({"host": "localhost:1", "sec-fetch-site": "same-site"}, False),
    ],
)
def test_whether_a_request_comes_from_the_page(headers: dict[str, str], same: bool) -> None:
    assert is_same_origin(Headers(headers)) is same
