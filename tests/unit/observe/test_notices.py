"""Notices as data, and in English: every kind is kept by the codec, worded and explained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.codecs.derivation import notice_data, notice_from
from unbroken.observe.notices import TOPICS, line_of, text_of
from unbroken.observe.notices.rendering import table_of
from unbroken.observe.status.notices import reported_notice
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.notices import Effect, Notice, Reported, Severity, UnknownNotice, known_kinds
from unbroken.protocol.values.notices.ingress import CutTimeLeapt, IngressLed
from unbroken.protocol.values.notices.replicas import ReplicaHalted
from unbroken.security.secret import Secret, masked

EXAMPLES = [example for topic in TOPICS for row in topic.rows for example in row.examples]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def restored(data: Mapping[str, Any]) -> Notice:
    return notice_from(data["kind"], Severity(data["severity"]), data["fields"])


@pytest.mark.parametrize("notice", EXAMPLES, ids=lambda notice: notice.kind)
def test_a_notice_survives_json(notice: Notice) -> None:
    data = json.loads(json.dumps(notice_data(notice)))
    found = restored(data)
    assert found == notice and type(found) is type(notice)
    assert set(data) == {"kind", "severity", "fields"} and data["severity"] == notice.severity.value


def test_every_kind_has_an_example_and_a_sentence_of_its_own() -> None:
    assert {type(notice) for notice in EXAMPLES} == set(known_kinds().values()) - {UnknownNotice}
    texts = [text_of(notice) for notice in EXAMPLES]
    assert len(set(texts)) == len(texts)
    assert not [text for text in texts if "None" in text or "()" in text or "  " in text]


def test_a_kind_without_an_explanation_cannot_be_rendered() -> None:
    """The same check runs when the table is imported, so the build fails with it."""
    without = [topic for topic in TOPICS if topic.title != "Pauses"]
    with pytest.raises(TypeError, match="flow_paused, flow_resumed"):
        table_of(without)
    with pytest.raises(TypeError, match="flow_paused"):
        table_of([*TOPICS, next(topic for topic in TOPICS if topic.title == "Pauses")])


def test_what_is_final_is_an_error_and_what_is_over_is_not() -> None:
    """Losses ask for attention, repairs do not."""
    for kind in known_kinds().values():
        if kind.effect in (Effect.LOSS, Effect.DOUBT):
            assert kind.usual_severity is not Severity.INFO, kind
        if kind.effect is Effect.REPAIR:
            assert kind.usual_severity is not Severity.ERROR, kind


def test_a_kind_of_another_version_is_kept_and_shown() -> None:
    data = {"kind": "moon_rose", "severity": "error", "fields": {"node": "a", "phase": 3}}
    found = restored(data)
    assert isinstance(found, UnknownNotice) and found.severity is Severity.ERROR
    assert notice_data(found) == data
    assert text_of(found) == 'moon_rose (of another version): {"node": "a", "phase": 3}'


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"node": "a", "term": "second"}, r"'ingress_led': Expected `int`, got `str` - at `\$.term`"),
        ({"node": "a", "term": 2, "why": "asked"}, "'ingress_led': Object contains unknown field `why`"),
        ({"node": "a"}, "'ingress_led': Object missing required field `term`"),
    ],
)
def test_a_known_kind_with_other_fields_is_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        notice_from("ingress_led", Severity.INFO, values)


@given(st.sampled_from(EXAMPLES), st.data())
def test_changed_data_give_a_notice_or_a_clear_error(notice: Notice, data: st.DataObject) -> None:
    changed = notice_data(notice)["fields"]
    names = [field.name for field in fields(notice)]  # type: ignore[arg-type]
    changed[data.draw(st.sampled_from([*names, "more"]))] = data.draw(values)
    try:
        found = notice_from(notice.kind, notice.severity, changed)
    except ValueError as error:
        assert f"the fields of the notice '{notice.kind}'" in str(error)
        return
    assert json.loads(json.dumps(notice_data(found)["fields"])) == json.loads(json.dumps(changed)) and text_of(found)


def test_who_reported_a_notice_and_when_is_shown() -> None:
    reported = Reported(5, "a", IngressLed("a", 2))
    assert line_of(reported) == "a: a leads the ingress (term 2)"
    found = reported_notice(reported)
    assert (found.time_ms, found.node, found.kind, found.severity) == (5, "a", "ingress_led", Severity.INFO)
    assert (found.effect, found.fields) == (IngressLed.effect, {"node": "a", "term": 2})
    assert found.text == "a leads the ingress (term 2)"


def test_a_leap_of_cut_times_is_shown_with_both_times() -> None:
    text = text_of(CutTimeLeapt("node-1", 1_700_000_000_000, 1_700_086_400_500))
    assert "2023-11-15 22:13:20 UTC" in text and "2023-11-14 22:13:20 UTC" in text
    assert f"{10**18} ms" in text_of(CutTimeLeapt("node-1", 1, 10**18)), "there is no such year"


@pytest.mark.parametrize("notice", EXAMPLES, ids=lambda notice: notice.kind)
def test_no_text_of_a_notice_escapes_a_change(notice: Notice) -> None:
    """The way by which secrets are masked reaches each of them."""
    changed = notice.with_texts(lambda text: "")
    for _, value in changed.facts():
        texts = value if isinstance(value, tuple) else (value,)
        assert not [text for text in texts if type(text) is str and text]


def test_secrets_in_errors_of_others_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "hunter2-hunter2")
    assert Secret.env("MAIL_PASSWORD").reveal() == "hunter2-hunter2"
    notice = ReplicaHalted(ReplicaId.parse("s.0#0"), "a", "cannot log in with password=hunter2-hunter2")
    assert "hunter2" not in text_of(notice.with_texts(masked))


def test_two_kinds_cannot_have_one_name() -> None:
    with pytest.raises(TypeError, match="ingress_led"):
        type("IngressLed", (Notice,), {}, severity=Severity.INFO, effect=Effect.NOTE)
