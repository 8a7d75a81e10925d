"""Values that stay on the nodes: a flow's file names where a secret is, never what it is.

The text of a flow's file is stored in ZooKeeper and shown by commands. A password in it would be, too. `Secret` is a
reference that each node resolves by itself, at the moment a client library needs the value. What was resolved is
remembered in this process, so that `masked` can remove it from messages that others made.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from unbroken.errors import Flaw, UnbrokenError

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

HIDDEN = "***"

SHORTEST_MASKED = 4
"""Shorter values are not looked for in messages: they would be found in ordinary words."""

LARGEST_FILE = 64 * 1024
"""Bytes of a secret's file; a larger one is a mistake in the path."""

_WORDS = re.compile(
    r"password|passwd|passphrase|secret|credential|jaas\.config|oauthbearer\.config|token|key\.pem|connection[._-]?string"
    r"|(access|account|private|encryption|sas|api|shared|master)[._-]?key([._-]|$)|\.sas\.",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"(location|file|path|dir|name|class|type|url|uri|endpoint|enabled?|provider|algorithm|interval|timeout|ttl|_id|\.id"
    r"|format|size|length|callback|handler|issuer|scope)$|\.secrets\.|secretKeyRef",
    re.IGNORECASE,
)


class SecretError(UnbrokenError):
    """A secret that this node cannot resolve."""


@dataclass(frozen=True)
class Secret:
    """A reference to a value on the node: an environment variable, or a file that only the node's user can read.

    Use it wherever a connector or a setting takes options, such as ``{"sasl.password": Secret.env("KAFKA_PASSWORD")}``.

    Examples
    --------
    >>> Secret.env("KAFKA_PASSWORD")
    Secret.env('KAFKA_PASSWORD')
    >>> Secret.file("/run/secrets/kafka")
    Secret.file('/run/secrets/kafka')
    """

    kind: str
    place: str

    def __post_init__(self) -> None:
        if self.kind not in ("env", "file") or not isinstance(self.place, str) or not self.place:
            raise SecretError(
                f"no secret can be at {self.kind!r} {self.place!r}. Write Secret.env('NAME') or Secret.file('/path')."
            )

    @classmethod
    def env(cls, name: str) -> Secret:
        """The value of an environment variable of the node."""
        return cls("env", name)

    @classmethod
    def file(cls, path: str | os.PathLike[str]) -> Secret:
        """The content of a file on the node, without a line end after it."""
        return cls("file", os.fspath(path))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Settings and operator networks take a reference, or a mapping of one."""
        from pydantic_core import core_schema  # Every command imports this module; few of them check settings.

        shown = core_schema.to_string_ser_schema()
        return core_schema.no_info_plain_validator_function(_validated, serialization=shown)

    def __repr__(self) -> str:
        return f"Secret.{self.kind}({self.place!r})"

    def reveal(self) -> str:
        """The value; from then on `masked` removes it from messages.

        Raises
        ------
        SecretError
            If there is no such variable or file on this node, or it is empty.
        """
        value = self._from_environment() if self.kind == "env" else self._from_file()
        if not value:
            raise SecretError(f"{self!r} is empty on this node. Give it a value.")
        _known.add(value)
        return value

    def _from_environment(self) -> str:
        try:
            return os.environ[self.place]
        except KeyError:
            raise SecretError(
                f"the environment variable {self.place} is not set on this node. Set it for every node of the flow."
            ) from None

    def _from_file(self) -> str:
        try:
            with Path(self.place).open("rb") as file:
                data = file.read(LARGEST_FILE + 1)
        except OSError as error:
            raise SecretError(
                f"the secret's file {self.place} cannot be read: {error.strerror}. Put it on every node of the flow."
            ) from None
        if len(data) > LARGEST_FILE:
            raise SecretError(f"the secret's file {self.place} has more than {LARGEST_FILE} bytes. Correct the path.")
        try:
            return data.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise SecretError(f"the secret's file {self.place} is not text. Correct the path.") from None


_known: set[str] = set()
"""The values that this process has resolved. A flow names a handful of them."""


def masked(text: str) -> str:
    """``text`` without any value that a `Secret` of this process was resolved to."""
    # The longest first: one may be a part of another.
    for value in sorted(_known, key=len, reverse=True):
        if len(value) >= SHORTEST_MASKED:
            for form in {value, quote(value, safe="")}:
                text = text.replace(form, HIDDEN)
    return text


def holds_secret(text: str) -> bool:
    """Whether a text is, or contains, a value that was resolved."""
    return any(value == text or (len(value) >= SHORTEST_MASKED and value in text) for value in _known)


class SecretFilter(logging.Filter):
    """Masks secrets in log records; belongs on every handler."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not _known:
            return True
        record.msg, record.args = masked(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = masked(record.exc_text)
        return True


def mask_logs() -> None:
    """Mask secrets in all that this process logs from now on."""
    for handler in logging.getLogger().handlers:
        if not any(isinstance(each, SecretFilter) for each in handler.filters):
            handler.addFilter(SecretFilter())


# --- options: mappings of names to values, some of which are secret ---------------------------------------


def declared(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options as a user wrote them; where there is no Python, ``{env: NAME}`` and ``{file: PATH}`` are secrets.

    A secret that is written out is refused by `literal_problems`, and masked like any other until then.
    """
    out = {name: _reference(value) for name, value in (options or {}).items()}
    _known.update(value for name, value in out.items() if isinstance(value, str) and value and is_secret(name))
    return out


def revealed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for a client library, with every `Secret` resolved on this node."""
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in options.items()}


def shown(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for people: values whose names tell that they are secret are hidden, references are not."""
    return {
        name: HIDDEN if is_secret(name) and not isinstance(value, Secret) else value for name, value in options.items()
    }


def is_secret(name: str) -> bool:
    """Whether the value of an option of this name has to stay on the nodes."""
    return _WORDS.search(name) is not None and _HARMLESS.search(name) is None


def literal_problems(parameter: str, options: Mapping[str, Any]) -> Iterable[Flaw]:
    """A flaw for each option that holds a secret itself instead of a reference."""
    for name, value in options.items():
        if is_secret(name) and value and not isinstance(value, Secret | bool):
            instead = f"{parameter}={{{name!r}: Secret.env('NAME')}} or Secret.file('/path')"
            yield Flaw(
                f"{parameter} holds the value of {name!r}, which would be stored with the flow's file",
                f"write {instead}, and set it on the nodes",
            )


def reference(value: Secret | Mapping[str, str] | None) -> Secret | None:
    """A parameter that takes nothing but a reference, as a user wrote it."""
    found = _reference(value)
    if found is None or isinstance(found, Secret):
        return found
    raise SecretError("a secret is written out where its reference belongs. Write Secret.env('NAME').")


def _validated(value: Any) -> Secret:
    found = _reference(value)
    if not isinstance(found, Secret):
        raise ValueError("write a reference to a secret: Secret.env('NAME'), or {env: NAME}")
    return found


def _reference(value: Any) -> Any:
    if isinstance(value, Mapping) and len(value) == 1:
        kind, place = next(iter(value.items()))
        if kind in ("env", "file"):
            return Secret(kind, place)
    return value
