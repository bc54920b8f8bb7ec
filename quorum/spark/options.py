"""The options of the data source: their names, values and uses. The case of names is ignored.

There is one record for a source and one for a sink. The error for a wrong value lists what is allowed; the error for an
unknown name suggests the nearest known one. Options that Spark itself adds are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Literal

from quorum.spark.errors import OptionError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DEFAULT_URL = "quorum://127.0.0.1:7400"
MAX_NAME_BYTES = 255
MAX_INT64 = (1 << 63) - 1
MIN_TIMEOUT_MS, MAX_TIMEOUT_MS = 1_000, 30 * 86_400_000
DEFAULT_TIMEOUT_MS = 86_400_000
MAX_PARTITIONS = 4_096
MAX_DELAY_MS = 86_400_000

Use = Literal["read", "stream", "write"]
USES: dict[Use, str] = {"read": "a batch read", "stream": "a stream", "write": "a sink"}

KNOWN: dict[str, tuple[Use, ...]] = {
    "url": ("read", "stream", "write"),
    "queue": ("read", "stream", "write"),
    "mode": ("read", "stream"),
    "selector": ("read", "stream"),
    "filterFields": ("read", "stream"),
    "includeBody": ("read", "stream"),
    "minPartitions": ("read", "stream"),
    "subscription": ("stream",),
    "startingOffsets": ("stream",),
    "startingTimestamp": ("stream",),
    "maxMessagesPerTrigger": ("stream",),
    "maxBytesPerTrigger": ("stream",),
    "minMessagesPerTrigger": ("stream",),
    "maxTriggerDelay": ("stream",),
    "failOnDataLoss": ("stream",),
    "subscriptionTimeout": ("stream",),
    "onExpiry": ("stream",),
    "txnAppId": ("write",),
    "txnVersion": ("write",),
    "ignoreUnknownColumns": ("write",),
}
"""Every option, in the order of the documentation, with its uses."""

OF_SPARK = (
    "path",
    "checkpointlocation",
    "queryname",
    "outputmode",
    "asyncprogresstrackingenabled",
    "asyncprogresstrackingcheckpointintervalms",
)
"""Options that Spark itself adds, in lower case."""

OF_A_TABLE = "provider"
"""An option that Spark adds for CREATE TABLE only. It asks for the schema with all options, and reads with none."""

MODES: dict[Use, tuple[str, ...]] = {"read": ("browse",), "stream": ("consume", "tail")}
ONLY_CONSUME = (
    "subscription",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "subscriptionTimeout",
    "onExpiry",
)

ONLY_TAIL = ("startingTimestamp",)

MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS = 100_000_000_000, 253_402_300_799_999
"""From 1973, so that seconds are not taken for milliseconds, to the year 9999."""

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a batch read or a stream."""

    url: str
    queues: tuple[str, ...]
    mode: str
    """"browse", "consume" or "tail"."""
    selector: str
    filter_fields: str | None
    """As it was given; None: the fields that the messages have."""
    include_body: bool
    min_partitions: int | None
    subscription: str
    starting: str | dict[str, int]
    """"earliest", "latest", or the first sequence by queue (tail)."""
    starting_ms: int | None
    """In place of it (tail): the time of the first message, in ms since 1970."""
    max_messages: int | None
    max_bytes: int | None
    min_messages: int
    max_delay_ms: int
    fail_on_data_loss: bool
    subscription_timeout_ms: int
    on_expiry: str
    """"release", "discard" or "keep"."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    url: str
    queue: str
    """The queue for rows without a value in a column `queue`; empty: each row has to name one."""
    txn_app_id: str
    """Empty if not given."""
    txn_version: int | None
    ignore_unknown_columns: bool


def apparent_use(given: Mapping[str, str]) -> Literal["read", "stream"]:
    """Whether the options are a stream's, if Spark does not tell: some options are only for streams."""
    names = {name.lower() for name in given}
    if any(uses == ("stream",) and name.lower() in names for name, uses in KNOWN.items()):
        return "stream"
    mode = next((value for name, value in given.items() if name.lower() == "mode"), "")
    return "stream" if mode.strip().lower() in MODES["stream"] else "read"


def source_options(given: Mapping[str, str], use: Literal["read", "stream"]) -> SourceOptions:
    """Raises OptionError."""
    values = _Values(given, use)
    mode = values.word("mode", MODES[use], MODES[use][0])
    if use == "stream" and mode != "consume":
        for name in ONLY_CONSUME:
            if name in values:
                raise OptionError(f"option {name} is for mode=consume; mode is {mode}")
    if use == "stream" and mode != "tail":
        for name in ONLY_TAIL:
            if name in values:
                raise OptionError(f"option {name} is for mode=tail; mode is {mode}")
    queues = values.queues()
    if not queues:
        raise OptionError("option queue is missing: the name of a queue, or several separated by commas")
    subscription = values.name("subscription")
    if mode == "consume" and not subscription:
        raise OptionError(
            "option subscription is missing: the durable name under which a stream takes messages; "
            "use the same name after a restart of this query, and another one for every other query"
        )
    min_messages = values.integer("minMessagesPerTrigger", 1, 65_536) or 0
    max_messages = values.integer("maxMessagesPerTrigger", 1, MAX_INT64)
    if max_messages is not None and min_messages > max_messages:
        raise OptionError(
            f"minMessagesPerTrigger is {min_messages}, more than maxMessagesPerTrigger, {max_messages}"
        )
    max_delay = values.duration_ms("maxTriggerDelay", 1, MAX_DELAY_MS)
    if max_delay is not None and not min_messages:
        raise OptionError(
            "maxTriggerDelay limits the wait for minMessagesPerTrigger, which is missing; give both"
        )
    return SourceOptions(
        url=values.url(),
        queues=queues,
        mode=mode,
        selector=values.text("selector"),
        filter_fields=values.get("filterFields"),
        include_body=values.boolean("includeBody", True),
        min_partitions=values.integer("minPartitions", 1, MAX_PARTITIONS),
        subscription=subscription,
        starting=values.starting(queues, mode),
        starting_ms=values.starting_ms(),
        max_messages=max_messages,
        max_bytes=values.integer("maxBytesPerTrigger", 1, MAX_INT64),
        min_messages=min_messages,
        max_delay_ms=15 * UNITS_MS["m"] if max_delay is None else max_delay,
        fail_on_data_loss=values.boolean("failOnDataLoss", True),
        subscription_timeout_ms=values.duration_ms("subscriptionTimeout", MIN_TIMEOUT_MS, MAX_TIMEOUT_MS)
        or DEFAULT_TIMEOUT_MS,
        on_expiry=values.word("onExpiry", ("release", "discard", "keep"), "release"),
    )


def sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Raises OptionError."""
    values = _Values(given, "write")
    queue = values.text("queue")
    if queue:
        values.check_name("queue", queue)
    app, version = values.name("txnAppId"), values.integer("txnVersion", 0, MAX_INT64)
    if streaming and version is not None:
        raise OptionError("option txnVersion is for batch writes; a stream numbers its batches itself")
    if not streaming and bool(app) != (version is not None):
        there, missing = ("txnAppId", "txnVersion") if app else ("txnVersion", "txnAppId")
        raise OptionError(f"option {there} is given without {missing}; a batch write takes both or neither")
    return SinkOptions(values.url(), queue, app, version, values.boolean("ignoreUnknownColumns", False))


class _Values:
    """The options as given, looked up by their documented names."""

    def __init__(self, given: Mapping[str, str], use: Use) -> None:
        self._by_name = {name.lower(): value for name, value in given.items()}
        documented = {name.lower(): name for name in KNOWN}
        if OF_A_TABLE in self._by_name:
            raise OptionError(
                "a table cannot be made of a queue, because Spark does not give the table's options to Python sources; "
                "use CREATE TEMPORARY VIEW name USING quorum OPTIONS (...)"
            )
        for name in self._by_name:
            if name in OF_SPARK or name.startswith("spark."):
                continue
            if name not in documented:
                raise OptionError(f"unknown option {name!r}{_nearest(name, use)}")
            uses = KNOWN[documented[name]]
            if use not in uses:
                allowed = " and ".join(USES[each] for each in uses)
                raise OptionError(f"option {documented[name]} is for {allowed}, not for {USES[use]}")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._by_name

    def get(self, name: str) -> str | None:
        return self._by_name.get(name.lower())

    def text(self, name: str) -> str:
        return (self.get(name) or "").strip()

    def url(self) -> str:
        from quorum.client.connection.endpoints import parse_url
        from quorum.client.errors import UsageError

        given = self.get("url")
        url = DEFAULT_URL if given is None else given.strip()
        try:
            parse_url(url)
        except UsageError as error:
            raise OptionError(f"option url: {error}") from None
        return url

    def name(self, name: str) -> str:
        text = self.text(name)
        if text:
            self.check_name(name, text)
        return text

    def check_name(self, name: str, text: str) -> None:
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MAX_NAME_BYTES:
            raise OptionError(f"option {name} has {size} bytes; at most {MAX_NAME_BYTES} are allowed")

    def queues(self) -> tuple[str, ...]:
        """The queues in order of name, because Spark compares offsets as text."""
        text = self.text("queue")
        names = [part.strip() for part in text.split(",")] if text else []
        for name in names:
            if not name:
                raise OptionError(f"option queue is {text!r}: it contains an empty name")
            if names.count(name) > 1:
                raise OptionError(f"option queue names {name!r} twice")
            self.check_name("queue", name)
        return tuple(sorted(names))

    def word(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        given = self.get(name)
        text = default if given is None else given.strip().lower()
        if text not in allowed:
            raise OptionError(f"option {name} is {text!r}; allowed: {', '.join(allowed)}")
        return text

    def boolean(self, name: str, default: bool) -> bool:
        return self.word(name, ("true", "false"), str(default).lower()) == "true"

    def integer(self, name: str, low: int, high: int) -> int | None:
        text = self.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,19}", text.strip(), re.ASCII) or not low <= int(text) <= high:
            raise OptionError(f"option {name} is {text!r}; allowed: an integer from {low} to {high}")
        return int(text)

    def duration_ms(self, name: str, low: int, high: int) -> int | None:
        text = self.get(name)
        if text is None:
            return None
        units = "|".join(UNITS_MS)
        found = re.fullmatch(rf"([0-9]{{1,12}}) ?({units})", text.strip().lower(), re.ASCII)
        value = int(found[1]) * UNITS_MS[found[2]] if found else -1
        if not low <= value <= high:
            allowed = f"a time such as 500ms, 30s, 15m, 24h or 7d, from {low}ms to {high // UNITS_MS['h']}h"
            raise OptionError(f"option {name} is {text!r}; allowed: {allowed}")
        return value

    def starting(self, queues: tuple[str, ...], mode: str) -> str | dict[str, int]:
        given = self.get("startingOffsets")
        text = "earliest" if given is None else given.strip()
        if text.lower() in ("earliest", "latest"):
            return text.lower()
        if mode != "tail":
            raise OptionError(
                f"option startingOffsets is {text!r}; allowed with mode=consume: earliest, latest"
            )
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(
            type(each) is int and 0 <= each <= MAX_INT64 for each in found.values()
        ):
            raise OptionError(
                f"option startingOffsets is {text!r}; allowed: earliest, latest, "
                f'or sequences such as {{"{queues[0]}": 17}}'
            )
        if set(found) != set(queues):
            raise OptionError(
                f"option startingOffsets is for the queues {', '.join(sorted(found)) or 'none'}; "
                f"option queue names {', '.join(queues)}"
            )
        return {str(queue): found[queue] for queue in queues}

    def starting_ms(self) -> int | None:
        """The option startingTimestamp in ms since 1970, rounded up if it is finer."""
        given = self.get("startingTimestamp")
        if given is None:
            return None
        if "startingOffsets" in self:
            raise OptionError(
                "options startingTimestamp and startingOffsets exclude each other; give one of them"
            )
        text = given.strip()
        value = int(text) if re.fullmatch(r"[0-9]{1,15}", text, re.ASCII) else _iso_ms(text)
        if not MIN_TIMESTAMP_MS <= value <= MAX_TIMESTAMP_MS:
            raise OptionError(
                f"option startingTimestamp is {given!r}; allowed: a time after 1973 with its zone, such as "
                "2026-05-31T08:00:00Z or 2026-05-31T10:00:00+02:00, or milliseconds since 1970"
            )
        return value


def _iso_ms(text: str) -> int:
    """The time in ms since 1970, rounded up; -1 if the text is no time with a zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return -1
    if time.tzinfo is None:
        return -1
    return -((EPOCH - time) // timedelta(milliseconds=1))


def _nearest(name: str, use: Use) -> str:
    """What to write in place of an unknown name. A name that is near to none of its use may be near to one of a stream:
    Spark asks for the schema of a stream as it does for that of a batch read."""
    uses: tuple[Use, ...] = ("read", "stream") if use == "read" else (use,)
    for each in uses:
        usable = _usable(each)
        close = get_close_matches(name, [option.lower() for option in usable], n=1)
        if close:
            return f"; did you mean {next(option for option in usable if option.lower() == close[0])}?"
    return "".join(f"; known for {USES[each]}: {', '.join(_usable(each))}" for each in uses)


def _usable(use: Use) -> list[str]:
    return [option for option, uses in KNOWN.items() if use in uses]
