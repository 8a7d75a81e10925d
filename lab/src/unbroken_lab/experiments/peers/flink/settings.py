"""The configuration of Flink in `unbroken bench peers`: what a user who wants short latencies would write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unbroken.spark.session import SMALL_JVM

SLOTS = 2
"""Slots of each TaskManager, of which the job uses one: when a TaskManager is lost the other has room for everything,
so that nothing has to be started before the job can go on."""

PARALLELISM = 2

OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.net", "java.nio", "java.text", "java.time"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks", "sun.nio.ch"),
)
"""Packages of Java that Flink reaches into."""

HEAP = "-Xmx512m"
"""Of each process. The state of the job takes a few megabytes. The other flags are those of all systems."""

AT_ONCE = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.delay": "0 s",
    "restart-strategy.fixed-delay.attempts": "1000",
}
"""A job is started again as soon as a loss is noticed."""

TUNED = {"heartbeat.interval": "1 s", "heartbeat.timeout": "3 s", **AT_ONCE}
"""A lost TaskManager is noticed after two failed heartbeats, a frozen one or a lost link after three seconds."""

EAGER = {"heartbeat.interval": "200 ms", "heartbeat.timeout": "1 s", **AT_ONCE}
"""So short that the pause of a busy machine may be taken for a loss."""


@dataclass(frozen=True)
class Ports:
    rpc: int
    rest: int


def configuration(root: Path, ports: Ports, tuning: Mapping[str, str]) -> dict[str, str]:
    """Everything that is not as Flink comes, and ``tuning`` on top of it."""
    return {
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.rpc.port": str(ports.rpc),
        "jobmanager.bind-host": "127.0.0.1",
        "taskmanager.host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": str(ports.rest),
        "taskmanager.numberOfTaskSlots": str(SLOTS),
        "parallelism.default": str(PARALLELISM),
        # One half of the job on each TaskManager, and not all of it on the first.
        "taskmanager.load-balance.mode": "SLOTS",
        # Small state and a local disk: a checkpoint takes milliseconds, and what comes after it is processed again.
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": (root / "checkpoints").as_uri(),
        "state.backend.type": "hashmap",
        # Rows wait for at most so long for others to be sent together; 100 ms as Flink comes.
        "execution.buffer-timeout.interval": "10 ms",
        "io.tmp.dirs": str(root / "temporary"),
        "web.upload.dir": str(root / "upload"),
        # Flink's scripts work these out of the size of the process.
        "taskmanager.cpu.cores": "1.0",
        "taskmanager.memory.framework.heap.size": "128m",
        "taskmanager.memory.framework.off-heap.size": "128m",
        "taskmanager.memory.jvm-metaspace.size": "256m",
        "taskmanager.memory.jvm-overhead.min": "192m",
        "taskmanager.memory.jvm-overhead.max": "192m",
        "taskmanager.memory.task.heap.size": "256m",
        "taskmanager.memory.task.off-heap.size": "0m",
        "taskmanager.memory.managed.size": "32m",
        "taskmanager.memory.network.min": "64m",
        "taskmanager.memory.network.max": "64m",
        **tuning,
    }


def write_configuration(directory: Path, values: Mapping[str, str]) -> None:
    """``config.yaml`` and the settings of the log, which stays apart from the results on the standard output."""
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(f'{name}: "{value}"\n' for name, value in values.items())
    (directory / "config.yaml").write_text(text)
    (directory / "log4j.properties").write_text(
        "rootLogger.level = INFO\n"
        "rootLogger.appenderRef.file.ref = File\n"
        "appender.file.name = File\n"
        "appender.file.type = FILE\n"
        "appender.file.fileName = ${sys:log.file}\n"
        "appender.file.layout.type = PatternLayout\n"
        "appender.file.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} - %m%n\n"
    )


def java_options(directory: Path, log_file: Path) -> list[str]:
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    log = [f"-Dlog.file={log_file}", f"-Dlog4j.configurationFile={(directory / 'log4j.properties').as_uri()}"]
    return [HEAP, *SMALL_JVM.split(), *opened, *log]
