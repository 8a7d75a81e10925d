"""Notices in the status of a node."""

from __future__ import annotations

from contextlib import suppress

from unbroken.codecs.derivation import notice_data, notice_from
from unbroken.observe.notices import text_of
from unbroken.observe.status.node import NodeStatus, NoticeStatus, NoticeValue, ReportedNotice
from unbroken.protocol.values.notices import Notice, Reported


def status_of(reported: Reported) -> NoticeStatus:
    """A notice as it stands in the status of the node that has reported it."""
    kind, fields = _facts(reported.notice)
    return NoticeStatus(
        time_ms=reported.time_ms,
        kind=kind,
        severity=reported.notice.severity,
        fields=fields,
        text=text_of(reported.notice),
    )


def reported_notice(reported: Reported) -> ReportedNotice:
    """A notice as it stands in the history of a flow."""
    kind, fields = _facts(reported.notice)
    return ReportedNotice(
        time_ms=reported.time_ms,
        node=reported.node,
        kind=kind,
        severity=reported.notice.severity,
        effect=reported.notice.effect,
        fields=fields,
        text=text_of(reported.notice),
    )


def _facts(notice: Notice) -> tuple[str, dict[str, NoticeValue]]:
    data = notice_data(notice)
    return data["kind"], {
        name: tuple(value) if isinstance(value, list) else value for name, value in data["fields"].items()
    }


def reports_of(status: NodeStatus) -> list[Reported]:
    """The latest notices of a node, oldest first; without those whose fields cannot be read."""
    out: list[Reported] = []
    for one in status.notices:
        with suppress(ValueError):
            out.append(Reported(one.time_ms, status.node, notice_from(one.kind, one.severity, one.fields)))
    return out
