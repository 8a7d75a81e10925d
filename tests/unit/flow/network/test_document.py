"""YAML as networks read it: lines, keys as they are written, and text that cannot be meant so."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from unbroken.flow.network import document
from unbroken.flow.network.document import DocumentEntry, NotYaml, Value, read_document


def plain(text: str) -> Any:
    value, mistakes = read_document(text)
    assert mistakes == []
    return value.plain()


def entry(value: Value, key: str) -> DocumentEntry:
    assert isinstance(value.content, dict)
    return value.content[key]


def failure(text: str) -> document.Mistake:
    with pytest.raises(NotYaml) as caught:
        read_document(text)
    return caught.value.mistake


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("=", "="),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        ("1_000", "1_000"),
        (".inf", ".inf"),
        ("count(*)", "count(*)"),
        ("300ms", "300ms"),
        ("'5'", "5"),
        ("5", 5),
        ("-07", -7),
        ("1.5", 1.5),
        (".5e3", 500.0),
        ("1e3", 1000.0),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("!!str 5", "5"),
    ],
)
def test_scalars(text: str, wanted: Any) -> None:
    found = plain(f"a: {text}")["a"]
    assert found == wanted and type(found) is type(wanted)


def test_keys_are_the_text_that_was_written() -> None:
    assert plain("on: 1\n5: 2\nnull: 3\n") == {"on": 1, "5": 2, "null": 3}


def test_lines_of_keys_and_values() -> None:
    value, _ = read_document("# a comment\na:\n  b: 1\n  c:\n    - x\n    - {d: 2}\n")
    a = entry(value, "a")
    assert (a.line, a.value.line) == (2, 3)
    c = entry(a.value, "c")
    assert (c.line, c.value.line) == (4, 5)
    assert isinstance(c.value.content, tuple)
    assert [item.line for item in c.value.content] == [5, 6]
    assert entry(c.value.content[1], "d").line == 6


def test_every_key_that_is_there_twice_is_told_and_the_first_counts() -> None:
    value, mistakes = read_document("a: 1\nb: {c: 1, c: 2}\na: 3\n")
    assert value.plain() == {"a": 1, "b": {"c": 1}}
    assert [(m.line, m.what) for m in mistakes] == [
        (2, "the key 'c' is there twice, first in line 2"),
        (3, "the key 'a' is there twice, first in line 1"),
    ]


def test_keys_that_are_no_names() -> None:
    _, (mistake,) = read_document("a: 1\n? [b]\n: 2\n")
    assert mistake.line == 2 and "list or a mapping" in mistake.what


@pytest.mark.parametrize("text", ["!foo x", "!!python/object/apply:os.system x", "!=", "!!timestamp 2026-01-01"])
def test_tags_mean_nothing_and_do_nothing(text: str) -> None:
    _, (mistake,) = read_document(f"a:\n  b: {text}\n")
    assert mistake.line == 2 and "tag" in mistake.what and "quote" in mistake.remedy


@pytest.mark.parametrize("text", ["!!int five", "!!float five", "9" * 5000])
def test_numbers_that_are_none(text: str) -> None:
    _, (mistake,) = read_document(f"a: {text}")
    assert "not a number" in mistake.what


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 1, "empty"),
        ("# nothing\n", 1, "empty"),
        ("a: 1\nb: [", 2, "not YAML"),
        ("a: 1\nb: c: d\n", 2, "mapping values are not allowed"),
        ("a:\n  b: 1\n\tc: 2\n", 3, "not YAML"),
        ("a: {is: >, value: 1}", 1, "'>'"),
        ("a: *b", 1, "undefined alias"),
        ("a: 1\n---\nb: 2\n", 2, "another document"),
        ("a: 1\nb: \x07\n", 2, "#x0007"),
        ("a:\n  &x [1, *x]\n", 2, "stands in"),
        ("[" * 3000, 1, "nested"),
    ],
)
def test_what_cannot_be_read(text: str, line: int, what: str) -> None:
    mistake = failure(text)
    assert mistake.line == line and what in mistake.what and mistake.remedy


def test_aliases_stand_for_their_value() -> None:
    assert plain("a: &x {b: 1}\nc: [*x, *x]\n") == {"a": {"b": 1}, "c": [{"b": 1}, {"b": 1}]}


def test_aliases_cannot_make_an_endless_document() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert "more than" in failure("\n".join(lines)).what


Documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(min_codepoint=32, max_codepoint=126)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex("[a-z]{1,5}", fullmatch=True), inner),
    max_leaves=10,
)


@given(Documents)
def test_what_pyyaml_writes_is_read_as_it_was(value: Any) -> None:
    """PyYAML quotes whatever it would itself read otherwise, which is more than is read otherwise here."""
    assert plain(yaml.safe_dump({"a": value})) == {"a": value}


@given(st.text(max_size=60))
def test_no_text_does_more_than_fail(text: str) -> None:
    try:
        read_document(text)
    except NotYaml as error:
        assert error.mistake.line >= 1
