"""Settings of a dataflow: validated when the file is loaded, explained when they are wrong."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from unbroken.errors import FlowError, Problem, WrongValue
from unbroken.protocol.settings import ProtocolSettings
from unbroken.quantities import milliseconds, shown
from unbroken.security.secret import HIDDEN, Secret, is_secret, literal_problems
from unbroken.wording import choices


def _whole(value: float) -> float:
    if not value.is_integer():
        raise ValueError(f"it must be a whole number of milliseconds, and is {value:g} ms")
    return value


Duration = Annotated[float, BeforeValidator(milliseconds), Field(allow_inf_nan=False)]


def instant(value: Any) -> Any:
    """Turn ``"2026-03-01T12:00:00Z"`` or a datetime into milliseconds since 1970; without a zone, UTC is meant."""
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value.strip())
        except ValueError:
            raise WrongValue(
                f"{shown(value)} is not a point in time", "write for example '2026-03-01T12:00:00Z'"
            ) from None
    if not isinstance(value, dt.datetime):
        return value
    aware = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
    return (aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


Instant = Annotated[int, BeforeValidator(instant), Field(ge=instant("0001-01-01"), le=instant("9999-12-31"))]

_UNITS_BYTES = {"kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000, "tb": 1_000_000_000_000}


def size_in_bytes(value: Any) -> Any:
    """Turn ``"64MB"`` into bytes; numbers are bytes already."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*((?:[0-9]++(?:\.[0-9]++)?|\.[0-9]++))\s*(kb|mb|gb|tb)\s*", value.lower())
    if match is None:
        raise WrongValue(f"{shown(value)} is not a size", "write for example '64MB' or '1GB'")
    return float(match[1]) * _UNITS_BYTES[match[2]]


Size = Annotated[float, BeforeValidator(size_in_bytes), Field(allow_inf_nan=False)]

LARGEST_SIZE = 1_000_000_000_000_000
"""A petabyte: more than a machine keeps or sends, and far from the end of the numbers that are counted with."""


class Settings(BaseModel):
    """Everything that can be tuned, with the reason for each default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: int = Field(default=3, ge=1, le=200, description="Local nodes that `unbroken run` starts.")
    standbys: int = Field(
        default=0,
        ge=0,
        le=200,
        description="Further local nodes with a warm Spark session and nothing to do, for replicas that lose theirs.",
    )
    pulse_min: Duration = Field(
        default=250,
        ge=20,
        le=60_000,
        description="Shortest pulse. A stateful Spark micro-batch of one segment takes about 150 to 200 ms.",
    )
    pulse_max: Duration = Field(
        default=10_000, ge=20, le=600_000, description="Longest pulse that the adaptation may stretch to."
    )
    pulse_start: Duration = Field(
        default=500,
        ge=20,
        le=600_000,
        description="Pulse at the start of a run; within pulse_min and pulse_max by default.",
    )
    in_flight_slack: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Pulses in flight allowed beyond one per segment. With none, a pulse is cut when the first "
        "segment is free for it, so that no unit waits; more smooths uneven segments at the price of latency.",
    )
    hedge: Duration = Field(
        default=100,
        ge=0,
        le=60_000,
        description="Replica k delivers k hedge delays after its result is ready, unless another did.",
    )
    delivery: str = Field(
        default="duplicate",
        pattern="^(duplicate|single)$",
        description="'duplicate': a replica takes its input from all producers, the first copy of a unit wins and a "
        "lost producer is not noticed; 'single': from one, which saves bytes, and from another when that one is lost.",
    )
    guarantee: str = Field(
        default="exactly-once",
        pattern="^(exactly-once|at-least-once|at-most-once)$",
        description="What sinks may see when something fails: 'exactly-once' needs sinks that keep a ledger; "
        "'at-least-once' may hand a unit to a sink again; 'at-most-once' never does, and may lose one instead.",
    )
    durability: str = Field(
        default="sync",
        pattern="^(sync|memory)$",
        description="When pushed rows and cuts count as logged by an ingress node: 'sync': when they are forced to its "
        "disk, so that a power failure loses none that waits to be processed; 'memory': when its operating system has "
        "them, which survives the end of every process and saves the time of the disk, a few milliseconds.",
    )
    patience: Duration = Field(
        default=2_000,
        ge=50,
        le=600_000,
        description="With single delivery: silence of a producer after which a waiting consumer turns to another.",
    )
    pairs: str = Field(
        default="partition",
        pattern="^(partition|cluster)$",
        description="'partition': each shard's replicas are placed, fed and replaced on their own; 'cluster': each "
        "node that takes part has a whole copy of the dataflow, which feeds itself and is lost as a whole: a baseline.",
    )
    ack_every: int = Field(
        default=1,
        ge=1,
        le=1_000,
        description="Units that a replica processes between two acknowledgements to its producers, which keep them.",
    )
    transfers: int = Field(
        default=2, ge=1, le=64, description="Replicas that may be built again at the same time in the whole flow."
    )
    transfer_rate: Size = Field(
        default=100_000_000,
        ge=10_000,
        le=LARGEST_SIZE,
        description="Bytes per second at which a replica's state is copied, so that results do not suffer from it.",
    )
    catch_up_lag: int = Field(
        default=2, ge=0, le=1_000, description="Units by which a joining replica may lag and count as redundancy."
    )
    claim_units: int = Field(
        default=1_000,
        ge=10,
        le=1_000_000,
        description="Units kept for a replica that falls behind its peers; then it is built again from one of them.",
    )
    claim_bytes: Size = Field(
        default=1_000_000_000,
        ge=1_000_000,
        le=LARGEST_SIZE,
        description="Bytes kept for a replica that falls behind its peers.",
    )
    snapshots: str | None = Field(
        default=None,
        description="Directory or URL that Spark can write and all nodes reach, for periodic snapshots of every shard; "
        "one that has lost all its replicas and their disks is restored from there.",
    )
    snapshot_every: Duration = Field(
        default=60_000,
        ge=1_000,
        le=86_400_000,
        description="Time between two snapshots; producers keep what has not been snapshotted.",
    )
    return_grace: Duration = Field(
        default=60_000,
        ge=1_000,
        le=3_600_000,
        description="How long nodes may take to come back when the whole flow is started again.",
    )
    heartbeat: Duration = Field(default=200, ge=20, le=60_000, description="Sign of life on idle links.")
    link_timeout: Duration = Field(
        default=2_000,
        ge=100,
        le=600_000,
        description="Silence after which a link counts as lost; a killed peer is noticed at once.",
    )
    ring_period: Duration = Field(
        default=500,
        ge=0,
        le=600_000,
        description="Time between two questions of a replica to the next one of its shard; 0 turns them off.",
    )
    ring_misses: int = Field(
        default=3,
        ge=1,
        le=1_000,
        description="Questions in a row without an answer after which the next one's node is suspected.",
    )
    session_timeout: Duration = Field(
        default=4_000,
        ge=1_000,
        le=120_000,
        description="ZooKeeper session time-out of a node; an ensemble of your own may grant less.",
    )
    gate_wait: Duration = Field(
        default=500, ge=10, le=10_000, description="Longest wait of Spark's source for the next cut."
    )
    order_log: str = Field(
        default="zookeeper",
        pattern=r"^(zookeeper|kafka://[^/]+(/[A-Za-z0-9._-]+)?)$",
        description="Where leaders publish their orders: 'zookeeper', or 'kafka://HOST:PORT', perhaps with '/TOPIC'.",
    )
    order_log_options: Mapping[str, str | int | float | bool | Secret] = Field(
        default_factory=dict,
        description="Settings of librdkafka for a log in Kafka, such as {'security.protocol': 'SASL_SSL'}.",
    )
    order_settle: Duration = Field(
        default=5,
        ge=0,
        le=10_000,
        description="Age of a unit below which a leader does not order it yet: the others may not have it.",
    )
    order_silence: Duration = Field(
        default=1_000,
        ge=50,
        le=600_000,
        description="How long a leader that can be reached may order nothing before another one takes the lead.",
    )
    bucket: Annotated[Duration, AfterValidator(_whole)] = Field(
        default=500,
        ge=50,
        le=3_600_000,
        description="With ordering='bucket': the length of event time that makes one unit, '50ms' to '1h', in whole "
        "milliseconds. There is a micro-batch for each, and a stateful one takes about 150 to 200 ms.",
    )
    bucket_origin: Instant | None = Field(
        default=None,
        description="With ordering='bucket': the event time at which the first bucket begins, such as "
        "'2026-03-01T12:00:00Z', for rows of the past; by default, when the flow is started for the first time.",
    )
    client_retain: int = Field(
        default=2_000, ge=1, le=1_000_000, description="Units kept for clients that subscribe late."
    )
    refusals: int = Field(
        default=5,
        ge=1,
        le=1_000,
        description="How often a sink may refuse a unit in the same way, for a reason that lies in the rows, before "
        "the unit goes to the dead letters and the next one is delivered.",
    )
    dead_letter_bytes: Size = Field(
        default=1_000_000_000,
        ge=1_000_000,
        le=LARGEST_SIZE,
        description="Bytes of dead letters that a run keeps on each machine; the oldest are removed first.",
    )
    dead_letter_age: Duration = Field(
        default=30 * 86_400_000,
        ge=60_000,
        le=100 * 365 * 86_400_000,
        description="Age after which dead letters are removed.",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="Port of each node's metrics for Prometheus; 0 takes a free one, None turns them off. Local nodes "
        "of one run count up from it.",
    )
    traces: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="One pulse of so many is traced through the flow with OpenTelemetry, 1 is every pulse; so are all "
        "failures. None turns traces off. Where they go is said by the usual OTEL_* environment variables.",
    )
    node_memory: str = Field(default="1g", pattern=r"^[1-9][0-9]*[mg]$", description="Heap of a node's Spark driver.")
    node_cores: int = Field(default=2, ge=1, le=256, description="Task slots of a local node's Spark.")
    partitions: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Spark's shuffle partitions, which are also the state partitions, of each replica. With 1, a "
        "micro-batch with one operator with state is one task, without a shuffle; shards already spread the state.",
    )
    jvm: str = Field(
        default="small",
        pattern="^(small|throughput)$",
        description="'small' compiles quickly and collects serially: best on few cores; 'throughput' compiles "
        "thoroughly and collects in parallel: best at saturation.",
    )
    spark: Mapping[str, str | Secret] = Field(
        default_factory=dict,
        description="Further Spark settings of every node; credentials are references: Secret.env('NAME').",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Settings:
        if "pulse_start" not in self.model_fields_set:
            # Whoever gives the shortest or longest pulse has not said anything about the first one.
            object.__setattr__(self, "pulse_start", max(self.pulse_min, min(self.pulse_start, self.pulse_max)))
        if not self.pulse_min <= self.pulse_start <= self.pulse_max:
            raise ValueError(
                f"pulse_min <= pulse_start <= pulse_max must hold, got "
                f"{self.pulse_min:g}, {self.pulse_start:g} and {self.pulse_max:g} ms"
            )
        if self.link_timeout < 2 * self.heartbeat:
            raise ValueError(
                f"link_timeout ({self.link_timeout:g} ms) must be at least twice heartbeat "
                f"({self.heartbeat:g} ms), or healthy links would be given up"
            )
        for name in ("spark", "order_log_options"):
            for flaw in literal_problems(name, getattr(self, name)):
                raise WrongValue(flaw.what, flaw.remedy)
        if 0 < self.ring_period < 20:
            raise ValueError(f"ring_period must be 0 (off) or at least 20 ms, got {self.ring_period:g} ms")
        return self

    def protocol(self) -> ProtocolSettings:
        return ProtocolSettings(
            pulse_min_ms=self.pulse_min,
            pulse_max_ms=self.pulse_max,
            pulse_start_ms=self.pulse_start,
            in_flight_slack=self.in_flight_slack,
            hedge_ms=self.hedge,
            client_retain=self.client_retain,
            order_settle_ms=self.order_settle,
            order_silent_ms=self.order_silence,
            single_delivery=self.delivery == "single",
            patience_ms=self.patience,
            catch_up_lag=self.catch_up_lag,
            claim_units=self.claim_units,
            claim_bytes=int(self.claim_bytes),
            snapshots=self.snapshots is not None,
            ack_every=self.ack_every,
            ring_period_ms=self.ring_period,
            ring_misses=self.ring_misses,
        )


def load_settings(where: str, values: dict[str, Any], others: Iterable[str] = ()) -> Settings:
    """Validate ``values``; every wrong one becomes a problem that names it.

    ``others`` are names that are no settings and can be given together with them.
    """
    try:
        return Settings(**values)
    except ValidationError as error:
        raise FlowError([_problem(where, detail, others) for detail in error.errors()]) from None


def _problem(where: str, detail: Any, others: Iterable[str]) -> Problem:
    name = ".".join(str(part) for part in detail["loc"])
    message = str(detail["msg"]).removeprefix("Value error, ")
    if not name:
        return Problem(f"{where}, settings", message, "change one of these values")
    if detail["type"] == "extra_forbidden":
        remedy = choices((*Settings.model_fields, *others), name)
        return Problem(f"{where}, setting {name}", "there is no such setting", remedy)
    field = Settings.model_fields.get(name)
    remedy = "change the value" if field is None else f"{name}: {field.description}"
    unit = unit_of(field, detail["type"])
    value = HIDDEN if is_secret(name) else shown(detail["input"])
    got = "" if value in message else f", got {value}{unit}"
    return Problem(f"{where}, setting {name}", f"{message}{unit}{got}", remedy)


def unit_of(field: FieldInfo | None, failure: str) -> str:
    """The unit of the numbers in a complaint about a setting that is too small or too large.

    Lengths of time are mostly given as text and compared as milliseconds, which has to be said.
    """
    lengths = [] if field is None else [part for part in field.metadata if getattr(part, "func", None) is milliseconds]
    return " ms" if lengths and failure in ("greater_than_equal", "less_than_equal") else ""
