"""Where a Structured Streaming query stopped, read from its checkpoint, so that a flow can go on from there."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs

from unbroken.connectors.kafka.client import KafkaError
from unbroken.connectors.kafka.positions import PartitionOffsets
from unbroken.connectors.location import scheme_of, unclear
from unbroken.errors import Flaw

SCHEMES = ("file", "s3", "gs", "hdfs", "viewfs", "abfs", "abfss")
"""The file systems of pyarrow."""

NOTHING_READ = "-"
"""What the offset log has for a source that has given nothing yet."""

LOG_VERSIONS = ("v1", "v2")


@dataclass(frozen=True)
class SparkCheckpoint:
    """The checkpoint of a Structured Streaming query that read from Kafka.

    A source that starts from it begins after the last micro-batch that the query committed. It is read once, at the
    flow's first start, by whichever node leads the ingress then; afterwards it is not needed any more. The query must
    have been stopped for good.

    Parameters
    ----------
    path
        The query's ``checkpointLocation``: a path, or a URI that pyarrow's file systems know (``s3://``, ``hdfs://``,
        ``gs://``).
    source
        Which source of the query, if it had several from Kafka: its number in the order of the query's plan, or its
        name if the query named its sources.
    """

    path: str | os.PathLike[str]
    source: int | str | None = None

    def problems(self) -> list[Flaw]:
        """What is wrong with the path, as a sentence with a remedy."""
        found = unclear(self.path, "The path of the checkpoint")
        if found:
            return found
        scheme = scheme_of(self.path)
        if scheme is None or (scheme in SCHEMES and "://" in os.fspath(self.path)):
            return []
        known = ", ".join(f"{name}://" for name in SCHEMES)
        return [Flaw(f"The checkpoint {os.fspath(self.path)} cannot be read", f"give a path, or a URL with {known}")]

    def offsets(self) -> PartitionOffsets:
        """The offsets after the last committed micro-batch.

        Raises
        ------
        KafkaError
            If there is no such checkpoint, or it is not of a query from Kafka.
        """
        files, root = self._open()
        committed = self._batches(files, root, "commits")
        planned = self._batches(files, root, "offsets")
        if not committed:
            raise KafkaError(
                f"The query of the checkpoint {self.path} has not committed any micro-batch, so it says nothing about "
                "where to go on. Give start='earliest' or the query's own startingOffsets instead."
            )
        batch = max(committed)
        if batch not in planned:
            raise KafkaError(
                f"The checkpoint {self.path} is damaged: commits/{batch} is there and offsets/{batch} is not. Restore "
                "it, or give the offsets as start={topic: {partition: offset}}."
            )
        sources = _sources(_read(files, f"{root}/offsets/{batch}"), f"{self.path}/offsets/{batch}")
        return self._choose(sources, f"{self.path}/offsets/{batch}")

    def _open(self) -> tuple[pa.fs.FileSystem, str]:
        text = os.fspath(self.path)
        try:
            if "://" in text:
                files, root = pa.fs.FileSystem.from_uri(text)
            else:
                files, root = pa.fs.LocalFileSystem(), os.path.abspath(text)
            kind = files.get_file_info(root).type
        except (OSError, pa.ArrowException) as error:
            raise KafkaError(f"The checkpoint {text} cannot be reached: {error}. Check path and access.") from error
        if kind != pa.fs.FileType.Directory:
            raise KafkaError(
                f"There is no checkpoint directory {text}. Give the checkpointLocation of the query, as a path that "
                "every node can read at the first start."
            )
        return files, root.rstrip("/")

    def _batches(self, files: pa.fs.FileSystem, root: str, kind: str) -> set[int]:
        try:
            found = files.get_file_info(pa.fs.FileSelector(f"{root}/{kind}"))
        except FileNotFoundError:
            raise KafkaError(
                f"{self.path} is no checkpoint of a streaming query: it has no directory {kind!r}. Give the "
                "checkpointLocation itself, not a directory above or below it."
            ) from None
        # Beside the batches there are checksums and files that were not finished.
        return {int(each.base_name) for each in found if each.base_name.isdecimal()}

    def _choose(self, sources: dict[str, str], where: str) -> PartitionOffsets:
        kafka = {name: offsets for name, text in sources.items() if (offsets := _kafka_offsets(text)) is not None}
        if self.source is None:
            if len(kafka) == 1:
                return next(iter(kafka.values()))
            if kafka:
                shown = ", ".join(f"{name} ({_topics(offsets)})" for name, offsets in kafka.items())
                raise KafkaError(
                    f"The query of {where} has {len(kafka)} sources from Kafka: {shown}. Say which one is meant: "
                    "SparkCheckpoint(path, source=...)."
                )
        elif str(self.source) in kafka:
            return kafka[str(self.source)]
        of = "no source" if self.source is None else f"no source {self.source!r}"
        shown = ", ".join(f"{name}: {text[:60]}" for name, text in sources.items()) or "none"
        raise KafkaError(
            f"{where} has {of} from Kafka; sources there: {shown}. Give the checkpoint of the query that read the "
            "topic, or the offsets as start={topic: {partition: offset}}."
        )


def _read(files: pa.fs.FileSystem, path: str) -> str:
    with files.open_input_stream(path) as stream:
        return bytes(stream.read()).decode("utf-8", errors="replace")


def _sources(text: str, where: str) -> dict[str, str]:
    """The sources of an entry of the offset log with their offsets, as text.

    Version 1 has a line for each source in the order of the plan; in version 2 the line begins with the source's name.
    """
    version, _, rest = text.partition("\n")
    if version.strip() not in LOG_VERSIONS:
        raise KafkaError(
            f"{where} does not begin with {' or '.join(LOG_VERSIONS)}, so it is no offset log that is known here. Give "
            "the offsets as start={topic: {partition: offset}}."
        )
    lines = [line for line in rest.split("\n")[1:] if line.strip()]  # The first one is about the micro-batch.
    if version.strip() == "v1":
        return {str(number): line for number, line in enumerate(lines)}
    pairs = (line.partition(":") for line in lines)
    return {name: offset for name, _, offset in pairs}


def _kafka_offsets(text: str) -> PartitionOffsets | None:
    """``{"orders": {"0": 12}}`` as offsets; None if it is something else."""
    if text == NOTHING_READ:
        return None
    try:
        value: Any = json.loads(text)
        if not isinstance(value, dict) or not value:
            return None
        return {
            (topic, int(number)): offset
            for topic, partitions in value.items()
            for number, offset in partitions.items()
            if isinstance(offset, int) or _not_an_offset(offset)
        }
    except (ValueError, AttributeError):
        return None


def _not_an_offset(value: object) -> bool:
    raise ValueError(f"{value!r} is not an offset")


def _topics(offsets: PartitionOffsets) -> str:
    return ", ".join(sorted({topic for topic, _ in offsets}))
