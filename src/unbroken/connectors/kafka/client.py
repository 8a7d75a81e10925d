"""What the Kafka source and the Kafka sink share: the client library, its settings, and how its errors are told.

The library (confluent-kafka) is an extra of this package, so it is imported when a connector is opened, not when it
is declared.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from unbroken.errors import Flaw, UnbrokenError, Unfit
from unbroken.security.secret import HIDDEN, Secret, is_secret, literal_problems, revealed

Option = str | int | float | bool | Secret
Options = Mapping[str, Option]

INSTALL = "pip install 'unbroken[kafka]'"

QUIET_S = 60.0
"""What the library says again is passed on once in this time: while a server is away it says the same every moment."""

_NO_SETTING = "unbroken.no.such.setting"
_SPARK_OPTIONS = {
    "endingOffsets": "leave it out, because a flow does not end",
    "failOnDataLoss": "leave it out, because records that are lost are always reported",
    "includeHeaders": "write metadata=['headers']",
    "maxOffsetsPerTrigger": "write max_records_per_pulse=",
    "startingOffsets": "write start=",
    "subscribe": "write topics=",
    "subscribePattern": "write pattern=",
    "topic": "write topic=",
}
"""Options of Spark's Kafka source and sink, and what a flow says instead."""

_SERVER = re.compile(r"(?:[A-Za-z0-9_]+://)?(?:[^\s,:/\[\]]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class KafkaError(UnbrokenError):
    """Something about Kafka that a user has to know, with what to do about it."""


class UnfitRows(KafkaError, Unfit):
    """Rows that cannot be written to Kafka, however often that is tried."""


def client() -> Any:
    """The module ``confluent_kafka``."""
    try:
        return import_module("confluent_kafka")
    except ImportError as error:
        raise KafkaError(f"Kafka needs the package confluent-kafka ({error}); install it with: {INSTALL}") from error


def admin_client() -> Any:
    """The module ``confluent_kafka.admin``."""
    client()
    return import_module("confluent_kafka.admin")


class _Sparingly(logging.Filter):
    """Lets a message pass if one that says the same has not passed for `QUIET_S`."""

    MOST = 200  # Kinds of messages that are remembered.

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = re.sub(r"\d+", "0", record.getMessage())[:200]
        now = time.monotonic()
        if now - self._said.get(kind, -QUIET_S) < QUIET_S:
            return False
        if len(self._said) >= self.MOST:
            self._said.clear()
        self._said[kind] = now
        return True


def library_log() -> logging.Logger:
    """Where the library's own messages go."""
    log = logging.getLogger("unbroken.librdkafka")
    if not any(isinstance(each, _Sparingly) for each in log.filters):
        log.addFilter(_Sparingly())
    return log


def server_list(servers: str | Sequence[str]) -> str:
    """Servers in librdkafka's form: ``host:port,host:port``."""
    return servers if isinstance(servers, str) else ",".join(servers)


def settings(servers: str | Sequence[str], options: Options, fixed: Options) -> dict[str, Any]:
    """The configuration of a librdkafka client: the user's ``options``, and over them what the connector relies on.

    The one place where secrets among the options are resolved.
    """
    return revealed(
        {
            "client.id": "unbroken",
            # Down for a while is ordinary here: back at most a second after the server is.
            "reconnect.backoff.max.ms": 1000,
            **options,
            **fixed,
            "bootstrap.servers": server_list(servers),
        }
    )


def client_problems(servers: str | Sequence[str], options: Options, reserved: Mapping[str, str]) -> list[Flaw]:
    """What is wrong with what both connectors have.

    ``reserved`` are librdkafka settings that a user must not give, with what to do instead.
    """
    found = []
    if find_spec("confluent_kafka") is None:
        found.append(Flaw("Kafka needs the package confluent-kafka, which is not installed", f"run {INSTALL}"))
    named = [each.strip() for each in servers.split(",")] if isinstance(servers, str) else list(servers)
    wrong = [each for each in named if not isinstance(each, str) or not _is_server(each)]
    if wrong or not named:
        given = repr(wrong[0]) if wrong else "empty"
        found.append(Flaw(f"servers is {given}", "give host:port, or several in a list or separated by commas"))
    for name in options:
        if name == "bootstrap.servers":
            found.append(Flaw(f"options has {name!r}", "give the servers as the parameter servers"))
        elif name in reserved:
            found.append(Flaw(f"options has {name!r}", reserved[name]))
        elif not isinstance(options[name], Option):
            kind = type(options[name]).__name__
            found.append(Flaw(f"The option {name!r} is a {kind}", "give a string, a number, a truth value or a Secret"))
        else:
            found += _unknown(name, options[name])
    return [*found, *literal_problems("options", options)]


def _unknown(name: str, value: Option) -> list[Flaw]:
    """Why the library does not take a setting, asked without making a client: that would open files and connections."""
    if find_spec("confluent_kafka") is None or name == "plugin.library.paths":
        return []
    kafka = client()
    try:
        # Settings are looked at one after the other, and the second one does not exist. Of a secret only the name is.
        kafka.Producer({name: "unknown" if isinstance(value, Secret) else value, _NO_SETTING: ""})
    except kafka.KafkaException as error:
        told = reason(error)
    else:
        return []
    if _NO_SETTING in told or (isinstance(value, Secret) and told.startswith("Invalid")):
        return []
    plain = name.removeprefix("kafka.")
    if plain != name:
        return [Flaw(f"options has {name!r}, as Spark writes it", f"leave out the prefix and write {plain!r}")]
    if name in _SPARK_OPTIONS:
        return [Flaw(f"options has {name!r}, which is Spark's", _SPARK_OPTIONS[name])]
    if told.startswith("No such"):
        return [Flaw(f"options has {name!r}, which librdkafka does not know", "correct the name or leave it out")]
    shown = told.replace(str(value), HIDDEN) if is_secret(name) else told
    return [Flaw(f"The option {name!r} is not taken by librdkafka ({shown.rstrip('.')})", "correct it or leave it out")]


def _is_server(text: str) -> bool:
    found = _SERVER.fullmatch(text)
    return found is not None and (found.group(1) is None or 0 < int(found.group(1)) < 65536)


def is_topic(name: object) -> bool:
    """Whether Kafka would take this as the name of a topic."""
    return isinstance(name, str) and _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def reason(error: Any) -> str:
    """What the library says about a failure (a ``KafkaException`` or a ``KafkaError`` of its own), on one line."""
    inner = error.args[0] if isinstance(error, BaseException) and error.args else error
    text = inner.str() if hasattr(inner, "str") else str(inner)
    return " ".join(str(text).split()) or type(error).__name__
