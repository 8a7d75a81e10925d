"""Notices: events worth reporting to a person, as data. All modules are imported here, so that every kind is known."""

from unbroken.protocol.values.notices import ingress, placement, processes, replicas, sinks, upgrades
from unbroken.protocol.values.notices.base import Effect, Notice, Reported, Severity, UnknownNotice, known_kinds

__all__ = [
    "Effect",
    "Notice",
    "Reported",
    "Severity",
    "UnknownNotice",
    "ingress",
    "known_kinds",
    "placement",
    "processes",
    "replicas",
    "sinks",
    "upgrades",
]
