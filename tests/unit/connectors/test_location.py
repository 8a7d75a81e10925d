"""URLs that a connector does not know are refused, instead of being taken for local directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from unbroken import Delta, Files, JsonLines, Kafka, Parquet, SparkCheckpoint
from unbroken.connectors.location import local_path, scheme_of

URLS = ["s3://bucket/in", "s3a://b", "hdfs:/data", "hdfs://n:8020/data", "dbfs:/mnt/x", "abfss://c@a/x", "S3://b/x"]


@pytest.mark.parametrize("url", URLS)
def test_directories_of_nodes_are_no_urls(url: str) -> None:
    scheme = url.partition(":")[0].lower()
    for made in (Files(url, format="json", schema="n long"), Parquet(url), JsonLines(url), Parquet(Path(url))):
        (problem,) = made.problems()
        name = type(made).__name__
        assert f"The path of {name} begins with {scheme}:" in problem.what
        assert problem.remedy.startswith("mount the place on all nodes")


@pytest.mark.parametrize(
    ("place", "what", "remedy"),
    [
        ("s3:b", "is neither a path nor a URL", "write s3://b, or the whole path of a directory"),
        ("S3A:b/x", "is neither a path nor a URL", "write S3A://b/x, or"),
        ("hdfs:data", "is neither a path nor a URL", "write hdfs://data, or"),
        ("file:data", "is neither a path nor a URL", "write file:///data, or"),
        (" s3://b/x", "begins or ends with white space", "write 's3:"),
        ("/data/x\n", "begins or ends with white space", "write '/data/x'"),
        ("~/x", "begins with ~", "write the whole path, such as /home/user/x"),
        ("~", "begins with ~", "write the whole path"),
        ("~ann/x", "begins with ~", "write the whole path"),
    ],
)
def test_places_that_are_not_what_they_seem(place: str, what: str, remedy: str) -> None:
    for made in (
        Files(place, format="json", schema="n long"),
        Parquet(place),
        JsonLines(place),
        Parquet(Path(place)),
        Delta(place),
        Kafka("h:9092", "t", start=SparkCheckpoint(place)),
    ):
        (problem,) = made.problems()
        assert what in problem.what and remedy in problem.remedy, (made, problem)


@pytest.mark.parametrize("place", ["a~b/x", "/~x", "x/~", "in:out", "news3:b", "s3", "a b"])
def test_odd_names_that_are_meant(place: str) -> None:
    for made in (Files(place, format="json", schema="n long"), Parquet(place), JsonLines(place), Delta(place)):
        assert not made.problems()


def test_directories_of_other_machines() -> None:
    (problem,) = Files("file://machine/in", format="json", schema="n long").problems()
    assert "begins with file:" in problem.what


@pytest.mark.parametrize("written", ["{}", "file://{}", "file:{}", "file://localhost{}"])
def test_local_urls_are_the_directory_they_name(tmp_path: Path, written: str) -> None:
    place = tmp_path / "a directory"
    url = written.format(str(place).replace(" ", "%20") if "file" in written else place)
    for made in (Files(url, format="json", schema="n long"), Parquet(url), JsonLines(url)):
        assert made.path == place and not made.problems()
    assert Delta(url).directory == place and not Delta(url).problems()


def test_paths_with_colons_are_paths() -> None:
    for path in ("2026-03-01T12:00/in", "in:out", "C:/data", "./s3:/x", "a b:/c"):
        assert scheme_of(path) is None and local_path(path) == Path(path)


@pytest.mark.parametrize("url", ["dbfs:/mnt/table", "dbfs://mnt/table", "foo://x/y", "wasbs://c@a/x", "http://h/x"])
def test_stores_that_a_delta_table_cannot_be_committed_to(url: str) -> None:
    (problem,) = Delta(url).problems()
    assert f"begins with {url.partition(':')[0]}:" in problem.what and "s3://" in problem.remedy


def test_a_delta_table_on_another_machine() -> None:
    (problem,) = Delta("file://machine/table").problems()
    assert problem.what.endswith("names a machine") and problem.remedy.startswith("write file:///")


@pytest.mark.parametrize(
    "url", ["s3://b/t", "s3a://b/t", "gs://b/t", "abfss://c@a/t", "hdfs://n:8020/t", "/data/t", "t"]
)
def test_stores_that_it_can_be_committed_to(url: str) -> None:
    assert not Delta(url).problems()
    assert (Delta(url).directory is None) == ("://" in url)


def test_storage_options_have_names_that_the_library_knows() -> None:
    (problem,) = Delta("s3://b/t", {"fs.s3a.endpoint": "x"}).problems()
    assert "'fs.s3a.endpoint' is one of Spark's" in problem.what and "aws_access_key_id" in problem.remedy
    (problem,) = Delta("s3://b/t", {"aws_region": 5}).problems()  # type: ignore[dict-item]
    assert "'aws_region' is a int" in problem.what and problem.remedy == "write it as a string"
    assert not Delta("s3://b/t", {"aws_region": "eu-central-1", "timeout": "5s"}).problems()
    assert not Delta("hdfs://n:8020/t", {"dfs.ha.namenodes.n": "a,b"}).problems()


@pytest.mark.parametrize(("path", "good"), [("s3://b/c", True), ("/c", True), ("dbfs:/c", False), ("hdfs:/c", False)])
def test_where_a_checkpoint_of_spark_is(path: str, good: bool) -> None:
    problems = Kafka("h:9092", "t", start=SparkCheckpoint(path)).problems()
    assert (problems == []) == good
    assert good or problems[0].what == f"The checkpoint {path} cannot be read"
