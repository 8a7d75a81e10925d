"""References to secrets: resolved on the node, never shown."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.connectors.delta.sink import Delta
from unbroken.connectors.kafka.client import settings
from unbroken.connectors.kafka.source import Kafka
from unbroken.connectors.postgres.sink import PostgreSQL
from unbroken.errors import FlowError
from unbroken.flow.loading import load_text
from unbroken.flow.network.signatures import given as parameters
from unbroken.flow.network.signatures import model_of
from unbroken.flow.program import Declared, differences
from unbroken.flow.settings import Settings, load_settings
from unbroken.security.secret import (
    LARGEST_FILE,
    Secret,
    SecretError,
    SecretFilter,
    declared,
    holds_secret,
    is_secret,
    literal_problems,
    masked,
    revealed,
    shown,
)
from unbroken.testing.warm.orders import RECIPE, Recipe

SECRET_NAMES = [
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "sasl.oauthbearer.client.secret",
    "sasl.jaas.config",
    "spark.hadoop.fs.s3a.secret.key",
    "spark.hadoop.fs.s3a.session.token",
    "spark.hadoop.fs.azure.account.key",
    "spark.authenticate.secret",
    "spark.hadoop.fs.azure.account.key.acct.dfs.core.windows.net",
    "spark.hadoop.fs.azure.sas.container.acct.blob.core.windows.net",
    "azure_storage_master_key",
    "azure_storage_connection_string",
    "sasl.oauthbearer.config",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_SAS_TOKEN",
    "google_service_account_key",
]
PUBLIC_NAMES = [
    "sasl.username",
    "sasl.mechanism",
    "ssl.ca.location",
    "ssl.key.location",
    "AWS_ACCESS_KEY_ID",
    "AWS_REGION",
    "spark.authenticate",
    "spark.authenticate.secret.file",
    "spark.sql.shuffle.partitions",
    "spark.kubernetes.driver.secrets.spark",
    "spark.kubernetes.authenticate.driver.oauthTokenFile",
    "key.deserializer.class",
    "transaction.timeout.ms",
]


def flow(password: str) -> str:
    return f"""
from unbroken import Console, Dataflow, Kafka
flow = Dataflow("clicks", nodes=2)
clicks = flow.source("clicks", Kafka("k:9092", "t", options={{"sasl.username": "u", "sasl.password": "{password}"}}))
@flow.segment(clicks)
def same(clicks):
    return clicks
flow.sink("screen", same, Console())
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is resolved here is not masked in what other tests say."""
    monkeypatch.setattr("unbroken.security.secret._known", set())


class TestReference:
    def test_of_a_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DATABASE", "s3same")
        assert Secret.env("DATABASE").reveal() == "s3same"
        assert repr(Secret.env("DATABASE")) == str(Secret.env("DATABASE")) == "Secret.env('DATABASE')"

    def test_of_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "password"
        path.write_text("open sesame\n")
        assert Secret.file(path).reveal() == "open sesame"

    @pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"x" * (LARGEST_FILE + 1)])
    def test_of_a_file_that_is_none(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "password"
        path.write_bytes(content)
        with pytest.raises(SecretError, match="password"):
            Secret.file(path).reveal()

    def test_that_leads_nowhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_SUCH", raising=False)
        with pytest.raises(SecretError, match=r"variable NO_SUCH is not set on this node\. Set it"):
            Secret.env("NO_SUCH").reveal()
        with pytest.raises(SecretError, match=r"nothing cannot be read: No such file"):
            Secret.file(tmp_path / "nothing").reveal()
        with pytest.raises(SecretError, match=r"Write Secret\.env"):
            Secret("vault", "x")

    def test_in_yaml_and_in_settings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DATABASE", "s3same")
        assert declared({"a": {"env": "X"}, "b": {"file": "/y"}, "c": 1}) == {
            "a": Secret.env("X"),
            "b": Secret.file("/y"),
            "c": 1,
        }
        written = {"url": "host=db", "table": "t", "password": {"env": "DATABASE"}}
        made = PostgreSQL(**parameters(model_of(PostgreSQL).model_validate(written)))
        assert made.address.password == Secret.env("DATABASE") and made.problems() == []
        assert Settings(spark={"a.password": {"env": "X"}}).spark == {"a.password": Secret.env("X")}  # type: ignore[dict-item]
        recipe = Recipe.of(Settings(spark={"a.password": Secret.env("X"), "b": "1"}))
        assert RECIPE.decode(RECIPE.encode(recipe)) == recipe


class TestNames:
    @pytest.mark.parametrize("name", SECRET_NAMES)
    def test_of_secrets(self, name: str) -> None:
        assert is_secret(name)
        (flaw,) = literal_problems("options", {name: "hush-hush"})
        assert "Secret.env" in flaw.remedy and "hush" not in str(flaw)
        assert not list(literal_problems("options", {name: Secret.env("X")}))

    @pytest.mark.parametrize("name", PUBLIC_NAMES)
    def test_of_others(self, name: str) -> None:
        assert not is_secret(name)
        assert not list(literal_problems("options", {name: "value"}))


class TestHiding:
    @given(st.text(st.characters(codec="utf-8"), min_size=4), st.text(), st.text())
    def test_a_resolved_value_is_removed_from_any_text(self, value: str, before: str, after: str) -> None:
        declared({"sasl.password": value})
        assert value not in masked(f"{before}{value}{after}").replace("***", "")

    def test_a_value_of_any_name_is_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PLAIN", "value-of-a-plain-name")
        monkeypatch.setenv("SHORT", "1")
        assert not holds_secret("value-of-a-plain-name")
        revealed({"spark.some.name": Secret.env("PLAIN"), "spark.other": Secret.env("SHORT")})
        assert holds_secret("with value-of-a-plain-name") and holds_secret("1") and not holds_secret("1g")

    def test_logs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOGGED", "canary-in-the-log")
        value = Secret.env("LOGGED").reveal()
        out = io.StringIO()
        handler = logging.StreamHandler(out)
        handler.addFilter(SecretFilter())
        log = logging.Logger("of this test")
        log.addHandler(handler)
        log.warning("with %s", value)
        try:
            raise RuntimeError(f"refused: {value}")
        except RuntimeError:
            log.exception("it failed")
        assert "canary" not in out.getvalue() and out.getvalue().count("***") >= 2

    def test_options_for_people_and_for_libraries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KAFKA", "s3same")
        options = {"sasl.password": Secret.env("KAFKA"), "ssl.key.password": "written out", "group.id": "g"}
        assert shown(options) == {**options, "ssl.key.password": "***"}
        assert revealed(options)["sasl.password"] == "s3same"

    def test_differences_between_programs_show_none(self, tmp_path: Path) -> None:
        file = tmp_path / "flow.py"
        found = differences(Declared.of(load_text(file, flow("OLDSECRET"), 1)), load_text(file, flow("NEWSECRET"), 2))
        assert len(found) == 1, "that it has changed is noticed"
        assert "SECRET" not in str(found[0]) and "***" in str(found[0]) and "'sasl.username': 'u'" in str(found[0])


class TestConnectors:
    def test_kafka(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KAFKA", "s3same")
        reference = Kafka("k:9092", "t", options={"sasl.password": Secret.env("KAFKA")})
        assert reference.problems() == []
        assert settings(reference.servers, reference.options, {})["sasl.password"] == "s3same"
        (flaw,) = Kafka("k:9092", "t", options={"sasl.password": "written out"}).problems()
        assert "'sasl.password'" in flaw.what and "written out" not in str(flaw)

    def test_delta(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STORE", "s3same-key")
        made = Delta("s3://b/t", {"AWS_SECRET_ACCESS_KEY": Secret.env("STORE")})
        assert made.problems() == [] and made.options["AWS_SECRET_ACCESS_KEY"] == "s3same-key"
        assert "s3same" not in str(made.failure(RuntimeError("wrong: s3same-key")))

    def test_postgres(self) -> None:
        (flaw,) = PostgreSQL("postgresql://me:hush@db/x", "t").problems()
        assert "password=Secret.env" in flaw.remedy and "hush" not in str(flaw)
        with pytest.raises(SecretError, match=r"Write Secret\.env") as raised:
            PostgreSQL("host=db", "t", password="hush")  # type: ignore[arg-type]
        assert "hush" not in str(raised.value)

    def test_settings(self) -> None:
        with pytest.raises(FlowError, match=r"spark holds the value of 'spark\.hadoop\.fs") as raised:
            load_settings("flow.py", {"spark": {"spark.hadoop.fs.s3a.secret.key": "hush"}})
        assert "hush" not in str(raised.value)
        with pytest.raises(FlowError) as raised:
            load_settings("flow.py", {"order_log_options": {"sasl.password": ["hush"]}})
        assert "hush" not in str(raised.value)
