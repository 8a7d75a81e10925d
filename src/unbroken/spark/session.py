"""The Spark session of a node, with every setting that was found to matter and why."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unbroken.flow.settings import Settings
from unbroken.security.secret import holds_secret, is_secret, revealed
from unbroken.spark.class_archive import archive_options
from unbroken.spark.java import java_environment
from unbroken.spark.master import (
    MasterError,
    await_executor,
    await_master,
    executor_settings,
    is_local,
    protection,
    python_path,
    refuse_hidden_driver,
)
from unbroken.spark.spark_submit import chosen, is_submitted, submitted_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m -XX:ReservedCodeCacheSize=192m"
"""On few cores the full compiler and parallel collectors of several nodes starve each other: a warm stateful
micro-batch costs 0.15 s of CPU with these flags against 0.235 s without. A dozen queries fill the 48 MB that one
compiler has for its code by default, and then nothing more is compiled."""

THROUGHPUT_JVM = "-XX:+UseParallelGC"
"""Large micro-batches leave much behind and mind no pause: a fifth less CPU than with the default collector."""

STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

JVM_OPTIONS = "spark.driver.extraJavaOptions"

JVM_SETTINGS = ("spark.driver.memory", JVM_OPTIONS)
"""What can only be said before the JVM starts."""


LOOPBACK = "127.0.0.1"


def spark_settings(settings: Settings, host: str = LOOPBACK) -> dict[str, str]:
    """Spark settings of a node whose driver is at ``host``; the user's own come last, with their secrets resolved."""
    conf = {
        # Spark would add micro-batches of its own to move watermarks; replicas must not depend on when.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
        # Commits write the changes of a micro-batch only; snapshots are made in the background.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Counting all rows makes every write of a key read it first; resetting statistics reads them all.
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
        "spark.sql.streaming.stateStore.rocksdb.resetStatsOnLoad": "false",
        # What has to be replayed when a replica starts on a copy is bounded by how often snapshots are made and
        # uploaded: with 100 MB of state it takes about 2 s instead of 6 s. A snapshot flushes RocksDB, so not oftener.
        "spark.sql.streaming.stateStore.maintenanceInterval": "10s",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "20",
        # Nothing goes back by more versions than that; each costs disk.
        "spark.sql.streaming.minBatchesToRetain": "20",
        # Without Hadoop's native library every call through FileContext forks `readlink` and `chmod`.
        "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
        "spark.sql.shuffle.partitions": str(settings.partitions),
        # Adaptive execution replans each micro-batch for nothing: stateful plans are fixed.
        "spark.sql.adaptive.enabled": "false",
        # Units hold timestamps in UTC; results must not depend on where a node runs.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # One record batch per task result: units are written as one piece.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
        # The default of 10 ms between polls adds to every micro-batch; the gate does the waiting.
        "spark.sql.streaming.pollingDelay": "1ms",
        "spark.sql.streaming.metricsEnabled": "false",
        # Each stateful operator broadcasts Hadoop's configuration with every micro-batch, to nobody but itself.
        "spark.broadcast.compress": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.driver.memory": settings.node_memory,
        # Small results of small tasks: do not wait for locality or retain history.
        "spark.locality.wait": "0",
        "spark.sql.ui.retainedExecutions": "1",
        "spark.ui.retainedJobs": "1",
        "spark.ui.retainedStages": "1",
        "spark.cleaner.periodicGC.interval": "10min",
    }
    conf[JVM_OPTIONS] = SMALL_JVM if settings.jvm == "small" else THROUGHPUT_JVM
    return {**conf, **revealed(settings.spark)}


def session_settings(settings: Settings, master: str, host: str, given: Mapping[str, str]) -> dict[str, str]:
    """Spark settings of a node that computes with ``master``.

    Those that spark-submit brought (``given``) hold, but for the ones that results and state depend on. Those of the
    flow's file come last. A local Spark listens on the loopback interface only, wherever the node is reached.
    """
    conf = spark_settings(settings, LOOPBACK if is_local(master) else host)
    small = SMALL_JVM if settings.jvm == "small" else ""
    if not is_local(master):
        conf |= executor_settings(settings, small)
    if given:
        # The JVM runs already, with what spark-submit was told about it.
        conf = {key: value for key, value in conf.items() if key not in JVM_SETTINGS}
    conf |= chosen(given)
    if given or not is_local(master):
        conf |= python_path(given)
    conf |= revealed(settings.spark)
    return {**conf, **protection(master, conf)}


def scratch_settings(conf: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Where Spark keeps what is of no use to a later process: files of shuffles, the state that RocksDB works on.

    By default that is the system's temporary directory, and a Spark that is killed leaves all of it there for ever.
    """
    # The last one holds: a user's own, if there is one.
    flags = f'"-Djava.io.tmpdir={scratch}" {conf.get(JVM_OPTIONS, "")}'.strip()
    return {"spark.local.dir": str(scratch), **conf, JVM_OPTIONS: flags}


def archive_settings(conf: Mapping[str, str]) -> dict[str, str]:
    """Let the JVM map Spark's classes from an archive, if this machine has one and the user's options name none."""
    flags = conf.get(JVM_OPTIONS, "")
    if "SharedArchiveFile" in flags or "ArchiveClassesAtExit" in flags:
        return dict(conf)
    return {**conf, JVM_OPTIONS: f"{archive_options()} {flags}".strip()}


def start_session(
    name: str, settings: Settings, master: str | None = None, host: str = "127.0.0.1", scratch: Path | None = None
) -> SparkSession:
    """Start this process's Spark session and register the ``unbroken`` source format.

    Under spark-submit the master is its to say. With a master that is not local this returns when there is an executor;
    raises MasterError if none comes. ``scratch`` is a directory for what Spark needs while it runs, if it is ours to
    start.
    """
    if not is_submitted():
        os.environ.update(java_environment())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = submitted_settings()
    if given and master is not None:
        raise MasterError("spark-submit has started this process: tell it the master, and leave --spark-master out")
    master = given.get("spark.master", master or f"local[{settings.node_cores}]")
    if not is_local(master):
        refuse_hidden_driver(master, host)
        await_master(master)
    conf = session_settings(settings, master, host, given)
    if scratch is not None and is_local(master) and not given:
        conf = scratch_settings(conf, scratch)
    if not given:
        conf = archive_settings(conf)
    session = _open_session(name, master, conf)
    session.sparkContext.setLogLevel("WARN")
    from unbroken.spark.source import UnbrokenSource

    # Spark also finds the format by the name of the module pyspark_unbroken. A source found that way shares one
    # Scala hash map between all queries, which several queries of a node would corrupt by starting at once.
    session.dataSource.register(UnbrokenSource)
    _forget_origins(session)
    _load_everything(session)
    return session


def _open_session(name: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    _start_jvm({"spark.app.name": name, "spark.master": master, **conf})
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    if is_local(master):
        local: SparkSession = builder.getOrCreate()
        return local
    try:
        session: SparkSession = builder.getOrCreate()
    except Exception as error:
        what = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise MasterError(f"Spark cannot be started with the master {master}: {what}") from error
    try:
        await_executor(session)
    except BaseException:
        session.stop()
        raise
    return session


def _start_jvm(conf: Mapping[str, str]) -> None:
    """Start Spark's JVM, unless it runs. Settings that are secret reach it later: its command line is public."""
    from pyspark import SparkConf, SparkContext

    public = SparkConf(loadDefaults=False)
    public.setAll([(key, value) for key, value in conf.items() if not (is_secret(key) or holds_secret(value))])
    SparkContext._ensure_initialized(conf=public)


def _forget_origins(session: SparkSession) -> None:
    """Make Hadoop's configuration forget which file each of its properties came from.

    Each stateful operator broadcasts the configuration with every micro-batch, and these origins, which only explain
    the configuration to a person, are compressed one by one on the way: 30 ms of 190 ms per micro-batch.
    """
    configuration = session.sparkContext._jsc.hadoopConfiguration()
    # Properties are read from their files when they are first asked for.
    configuration.size()
    jvm: Any = session.sparkContext._jvm
    origins = jvm.java.lang.Class.forName("org.apache.hadoop.conf.Configuration").getDeclaredField("updatingResource")
    origins.setAccessible(True)
    origins.get(configuration).clear()


def _load_everything(session: SparkSession) -> None:
    """Load what is otherwise loaded by the first thread that needs it.

    Arrow initialises its use of pandas once, under a lock, and pandas on being imported uses Arrow: two threads of
    a node that begin with one of them each wait for each other for ever. One small collection loads both, and
    saves the first micro-batch the time.
    """
    import pyarrow as pa

    if find_spec("pandas") is not None:
        pa.table({"loaded": [1]}).to_pandas()
    session.range(1).toArrow()
