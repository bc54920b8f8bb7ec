"""The plan and the results of a bench, as plain records that its processes exchange as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from quorum.client.connection.endpoints import SCHEME, parse_url

Mode = Literal[
    "publish", "consume", "both", "backlog", "transfer", "selectors", "singles", "select", "spark", "sizing"
]

FIELD_SELECTORS = (
    "region = 'north'",
    "region = 'east' AND price >= 0",
    "region = 'south' AND (urgent = TRUE OR urgent <> TRUE)",
    "region LIKE 'w%' AND amount BETWEEN 0 AND 100000",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan. Defaults are the standard bench: 256 bytes, batches of 500, 8 unconfirmed batches for each producer.

    rate: messages a second, all producers together; 0: as fast as the window allows.
    backlog: messages published before `consume` measures. lazy: the queue keeps almost nothing in memory.
    rounds: number of times that `transfer` removes a member's log. tasks, threads: of each producer in `singles`.
    queues: in `publish`, above 1, each message goes through a fanout exchange to so many queues of one group. bindings:
    in `publish`, above 0, messages go through a selector exchange with so many bindings, and match one of them.
    transaction: in `singles`, above 0, each task publishes transactions of so many messages. groups: the Raft groups of
    each transaction, with one queue each; its messages are spread evenly. linger_ms: in `singles` and `select`, that of
    the producers' clients. secured: the cluster has TLS for clients and
    between members, and the load logs in as a user with permissions.
    """

    mode: Mode = "both"
    members: int = 3
    body_bytes: int = 256
    batch: int = 500
    window: int = 8
    producers: int = 3
    consumers: int = 2
    warmup_s: float = 5.0
    seconds: float = 20.0
    filter_enabled: bool = False
    rate: int = 0
    backlog: int = 500_000
    lazy: bool = False
    rounds: int = 1
    tasks: int = 64
    threads: int = 0
    queues: int = 1
    bindings: int = 0
    transaction: int = 0
    groups: int = 1
    linger_ms: int = 0
    secured: bool = False

    @property
    def selectors(self) -> tuple[str, ...]:
        return FIELD_SELECTORS if self.filter_enabled else ()


@dataclass(frozen=True, slots=True)
class Load:
    """One load process: a producer or a consumer at one endpoint."""

    program: ClassVar[str] = "quorum.bench.load"

    role: Literal["producer", "consumer"]
    number: int
    endpoint: str
    queue: str
    body_bytes: int
    batch: int
    window: int
    prefetch: int
    with_fields: bool = False
    selector: str | None = None
    exchange: str = ""  # of a producer; empty: the default exchange
    receivers: int = 0  # of a producer; above 0, each message is for one of so many, see receivers.py
    batches_per_s: float = 0.0
    total_batches: int = 0  # of each session; 0: until told to stop
    sessions: int = 1  # of a producer; each has its own window
    attach_at_start: bool = False  # a consumer that must not take anything before the measured time
    idle_limit_s: float = (
        0.0  # a consumer ends after this time without a message; 0: at the end of the measured time
    )
    login: str = ""  # see url_of

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Load:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class SinglesLoad:
    """One process of `singles` or `select`, with a client for each endpoint.

    rate: messages a second of this process, of all processes if it consumes; 0: each of the producer's tasks publishes
    when its last message is confirmed. threads: in place of the tasks, with the blocking client. receivers: number of
    selective consumers in the whole bench; 0: no selectors. numbers: those of this process's consumers.
    """

    program: ClassVar[str] = "quorum.bench.singles_load"

    role: Literal["producer", "consumer"]
    number: int
    endpoints: tuple[str, ...]
    queue: str
    body_bytes: int
    tasks: int
    rate: float = 0.0
    receivers: int = 0
    threads: int = 0
    transaction: int = 0  # messages of each transaction; 0: no transactions
    others: tuple[str, ...] = ()  # queues of other groups that each transaction publishes to as well
    numbers: tuple[int, ...] = ()
    linger_ms: int = 0
    login: str = ""  # see url_of

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SinglesLoad:
        fields = json.loads(text)
        lists = {name: tuple(fields[name]) for name in ("endpoints", "numbers", "others")}
        return cls(**{**fields, **lists})


@dataclass(slots=True)
class Tally:
    """The counts of one load process in the measured time. latencies_us: publish to confirm, one for each batch.

    last_at: monotonic time of the last counted message. tenths_at: for a producer with a total, the times at which each
    tenth of its batches was confirmed.
    """

    messages: int = 0
    batches: int = 0
    cpu_s: float = 0.0
    last_at: float = 0.0
    latencies_us: list[int] = field(default_factory=list)
    tenths_at: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Result:
    plan: Plan
    published: int
    settled: int
    measured_s: float
    latencies_us: tuple[int, ...]
    server_cpu_s: float
    client_cpu_s: float
    resident_mb: tuple[float, ...]

    @property
    def messages(self) -> int:
        """The bench's main count: settled messages, or confirmed ones without consumers."""
        return self.published if self.plan.mode == "publish" else self.settled

    def to_dict(self) -> dict[str, Any]:
        per_100k = 100_000 / self.messages if self.messages else math.nan
        return {
            "mode": self.plan.mode,
            "messages_per_s": round(self.messages / self.measured_s),
            "p50_ms": percentile_ms(self.latencies_us, 0.50),
            "p99_ms": percentile_ms(self.latencies_us, 0.99),
            "server_cpu_s_per_100k": round(self.server_cpu_s * per_100k, 3) if self.messages else None,
            "members": self.plan.members,
            "body_bytes": self.plan.body_bytes,
            "published_per_s": round(self.published / self.measured_s),
            "client_cpu_s_per_100k": round(self.client_cpu_s * per_100k, 3) if self.messages else None,
            "resident_mb": [round(size, 1) for size in self.resident_mb],
            "batch": self.plan.batch,
            "window": self.plan.window,
            "producers": self.plan.producers if self.plan.mode != "consume" else 0,
            "consumers": self.plan.consumers if self.plan.mode != "publish" else 0,
            "filter_enabled": self.plan.filter_enabled,
            "queues": self.plan.queues,
            "bindings": self.plan.bindings,
            "rate": self.plan.rate,
            "secured": self.plan.secured,
            "seconds": round(self.measured_s, 2),
        }


def url_of(endpoint: str, login: str) -> str:
    """The URL at which a load process connects. login: a URL with the files and the user of a secured cluster; empty:
    the cluster is not secured."""
    return parse_url(login).url_of(endpoint) if login else f"{SCHEME}{endpoint}"


def percentile_ms(latencies_us: Sequence[int], share: float) -> float | None:
    """A percentile by nearest rank, in milliseconds; None without values."""
    if not latencies_us:
        return None
    ordered = sorted(latencies_us)
    rank = max(1, math.ceil(share * len(ordered)))
    return round(ordered[rank - 1] / 1000, 2)
