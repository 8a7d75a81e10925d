"""The options of ZooKeeper's address: TLS and a user, against a real server that asks for both."""

from __future__ import annotations

from pathlib import Path

import pytest
from kazoo.exceptions import NoAuthError

from kit.support import TOKEN
from unbroken.coordination.client import claim_root
from unbroken.coordination.documents import connect
from unbroken.coordination.ensemble import PASSWORD, client_options
from unbroken.errors import UnbrokenError, Unreachable
from unbroken.local.zookeeper_server import EmbeddedZooKeeper, _listen_probe
from unbroken.security.certificates import credentials

OTHER = "another token, as long as it has to be"

SESSION_S, DEADLINE_S = 20, 60
"""A session ends if it is not established within the first; on a busy machine a handshake of TLS takes seconds."""


def test_an_address_without_options_is_taken_as_it_is() -> None:
    assert client_options("zk1:2181,zk2:2181/below", {}) == {"hosts": "zk1:2181,zk2:2181/below"}


def test_files_and_passwords(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key", "password"):
        (tmp_path / name).write_text(f"of {name}\n")
    files = f"ca={tmp_path}/ca&certificate={tmp_path}/cert&key={tmp_path}/key"
    found = client_options(f"zk:1?{files}", {})
    assert found["use_ssl"] and found["verify_certs"] and found["ca"] == str(tmp_path / "ca")
    assert (found["certfile"], found["keyfile"]) == (str(tmp_path / "cert"), str(tmp_path / "key"))
    assert client_options("zk:1?tls=yes", {})["use_ssl"] and "use_ssl" not in client_options("zk:1?tls=no", {})
    user = "sasl=digest-md5&user=flows"
    expected = {"mechanism": "DIGEST-MD5", "username": "flows", "password": "hush"}
    assert client_options(f"zk:1?{user}", {PASSWORD: "hush"})["sasl_options"] == expected
    given = client_options(f"zk:1?{user}&password_file={tmp_path}/password", {PASSWORD: "hush"})
    assert given["sasl_options"]["password"] == "of password"


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("zk:1?password=x", "unknown options: password. Use tls,"),
        ("zk:1?x", "unknown options: x"),
        ("zk:1?ca=/not/there", "the file of ZooKeeper's option ca cannot be read: /not/there"),
        ("zk:1?sasl=PLAIN", "mechanism is not supported: PLAIN. Use DIGEST-MD5 or GSSAPI"),
        ("zk:1?sasl=DIGEST-MD5", "needs a user and a password"),
        ("zk:1?sasl=DIGEST-MD5&user=u", f"environment variable {PASSWORD}"),
    ],
)
def test_what_makes_no_sense_is_explained(address: str, told: str) -> None:
    with pytest.raises(UnbrokenError, match=told):
        client_options(address, {})


class Secured(EmbeddedZooKeeper):
    """A server with a port for TLS, and users who have to log in with a password."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "zk", directory / "zk.log")
        self.secure_port = _listen_probe("127.0.0.1", 0)
        self._directory = directory

    def _write_config(self, port: int) -> Path:
        config = super()._write_config(port)
        server, client = credentials(OTHER), self._directory / "trusted.pem"
        client.write_bytes(server.authority)
        (self._directory / "server.pem").write_bytes(server.key + server.certificate)
        more = {
            "secureClientPort": self.secure_port,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": self._directory / "server.pem",
            "ssl.trustStore.location": client,
            "ssl.clientAuth": "need",
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        }
        with config.open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in more.items())
        return config

    def _command(self, config: Path) -> list[str]:
        jaas = self._directory / "jaas.conf"
        login = "org.apache.zookeeper.server.auth.DigestLoginModule"
        jaas.write_text(f'Server {{ {login} required user_flows="hush"; }};\n')
        command = super()._command(config)
        return [command[0], f"-Djava.security.auth.login.config={jaas}", *command[1:]]


@pytest.mark.cluster
def test_a_session_over_tls_with_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = credentials(OTHER)
    for name, content in (("ca", mine.authority), ("cert", mine.certificate), ("key", mine.key)):
        (tmp_path / name).write_bytes(content)
    monkeypatch.setenv(PASSWORD, "hush")
    with Secured(tmp_path) as server:
        files = f"ca={tmp_path}/ca&certificate={tmp_path}/cert&key={tmp_path}/key"
        address = f"127.0.0.1:{server.secure_port}?{files}&sasl=DIGEST-MD5&user=flows"
        client = connect(address, SESSION_S, DEADLINE_S, token=TOKEN)
        try:
            claim_root(client, "mine")
            client.create("/unbroken/mine/paused", b"{}")
            assert client.get("/unbroken/mine/paused")[0] == b"{}"
        finally:
            client.stop()
            client.close()
        other = connect(address, SESSION_S, DEADLINE_S, token=OTHER)
        try:
            with pytest.raises(NoAuthError):
                other.get("/unbroken/mine/paused")
        finally:
            other.stop()
            other.close()
        monkeypatch.setenv(PASSWORD, "wrong")
        with pytest.raises(Unreachable, match="refuses the user"):
            connect(address, SESSION_S, DEADLINE_S, token=TOKEN)
        with pytest.raises(Unreachable):
            connect(f"127.0.0.1:{server.secure_port}", 5, 3, token=TOKEN)
