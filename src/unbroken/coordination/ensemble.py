"""How a ZooKeeper is reached that is not the run's own: over TLS, with a name and a password.

An address is ``HOST:PORT``, several of them with commas, a path below which everything is kept, and options:
``zk1:2281,zk2:2281/spark?ca=/etc/zookeeper/ca.pem&sasl=DIGEST-MD5&user=flows``.

| option | meaning |
|---|---|
| ``tls=yes`` | connect over TLS and trust the authorities of the system |
| ``ca=FILE`` | connect over TLS and trust this authority |
| ``certificate=FILE``, ``key=FILE`` | the client's own certificate, if the ensemble asks for one |
| ``sasl=MECHANISM`` | authenticate the session, with ``DIGEST-MD5`` or ``GSSAPI`` |
| ``user=NAME``, ``password_file=FILE`` | for ``DIGEST-MD5``; the password may be in ``UNBROKEN_ZOOKEEPER_PASSWORD`` |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from unbroken.errors import UnbrokenError

PASSWORD = "UNBROKEN_ZOOKEEPER_PASSWORD"
OPTIONS = ("tls", "ca", "certificate", "key", "sasl", "user", "password_file")
MECHANISMS = ("DIGEST-MD5", "GSSAPI")


def client_options(address: str, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What kazoo's client is made with for an address; raises UnbrokenError if it has options that do not exist."""
    hosts, _, query = address.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown or (query and not given):
        what = ", ".join(unknown) or query
        raise UnbrokenError(f"the address of ZooKeeper has unknown options: {what}. Use {', '.join(OPTIONS)}.")
    return {"hosts": hosts, **_tls(given), **_sasl(given, environment)}


def _tls(given: Mapping[str, str]) -> dict[str, Any]:
    files = {option: _readable(option, given[option]) for option in ("ca", "certificate", "key") if given.get(option)}
    if not files and given.get("tls", "no") in ("no", ""):
        return {}
    return {
        "use_ssl": True,
        "verify_certs": True,
        "ca": files.get("ca"),
        "certfile": files.get("certificate"),
        "keyfile": files.get("key"),
    }


def _sasl(given: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    mechanism = given.get("sasl", "").upper()
    if not mechanism:
        return {}
    if mechanism not in MECHANISMS:
        raise UnbrokenError(f"ZooKeeper's SASL mechanism is not supported: {mechanism}. Use {' or '.join(MECHANISMS)}.")
    try:
        import puresasl  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:
        raise UnbrokenError(
            "SASL needs the package pure-sasl. Install it with `pip install 'unbroken[sasl]'`."
        ) from None
    options: dict[str, Any] = {"mechanism": mechanism}
    if mechanism == "DIGEST-MD5":
        options |= {"username": given.get("user", ""), "password": _password(given, environment)}
        if not options["username"] or not options["password"]:
            raise UnbrokenError(
                f"DIGEST-MD5 needs a user and a password. Add user=NAME to ZooKeeper's address, and password_file=FILE "
                f"or the environment variable {PASSWORD}."
            )
    return {"sasl_options": options}


def _password(given: Mapping[str, str], environment: Mapping[str, str]) -> str:
    if not given.get("password_file"):
        return environment.get(PASSWORD, "")
    return Path(_readable("password_file", given["password_file"])).read_text().strip()


def _readable(option: str, file: str) -> str:
    if not os.access(file, os.R_OK):
        raise UnbrokenError(f"the file of ZooKeeper's option {option} cannot be read: {file}. Give the path of one.")
    return file
