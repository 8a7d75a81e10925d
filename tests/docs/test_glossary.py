"""The glossary stays short, and explains words that the product uses."""

from __future__ import annotations

import re

from kit.places import ROOT

LIMIT = 30
"""More words than these are more than a reader keeps in mind."""

TERMS = re.findall(r"^\| ([a-z ]+) \| (.+?) \| .*\|$", (ROOT / "docs" / "glossary.md").read_text(), re.M)[1:]


def test_the_glossary_has_few_words_in_order() -> None:
    words = [word for word, _ in TERMS]
    assert 20 <= len(words) <= LIMIT
    assert words == sorted(set(words))


def test_each_word_is_used_in_the_code_and_explained_by_others() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "src" / "unbroken").rglob("*.py")).lower()
    for word, meaning in TERMS:
        assert word.replace(" ", "_") in code or word in code, word
        assert word not in re.findall(r"[a-z]+", meaning.lower()), f"{word} explains itself"
