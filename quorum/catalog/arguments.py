"""The meaning of a queue's `x-` arguments: from what a client wrote to a checked, effective configuration.

Only this module checks arguments. `effective_config` is pure, and the catalog's machine calls it while it applies a
declaration. So the meaning of an argument is part of the machine's version.

An argument is one of three kinds:

- unknown: refused, with the nearest known one;
- known but not supported by this version: refused with that reason, rather than accepted and ignored;
- supported: its value is checked for kind and range. A boolean is not an integer here, and an integer is not a double.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fifo.commands import (
    DEAD_LETTER_STRATEGIES,
    MAX_MESSAGE_TTL_MS,
    MAX_NAME_BYTES,
    MAX_PRIORITY,
    OVERFLOWS,
    QUEUE_MODES,
    QueueConfig,
)
from fifo.frozen_dataclasses import dataclass
from fifo.versions import CURRENT, FIRST, LIMITED_DELIVERIES
from quorum_selectors.errors import FieldNameError
from quorum_selectors.known_fields import DEFAULT_FIELD_NAMES, resolve_field_names

ArgumentValue = bool | int | float | str | bytes
Arguments = tuple[tuple[str, ArgumentValue], ...]
"""Arguments, sorted by name."""

MAX_COUNT = 1 << 48
MAX_EXPIRES_MS = 1 << 53
MAX_FILTER_BYTES = 1 << 24
DELIVERY_LIMIT = 20
"""The delivery limit of queues that were declared without one, as in RabbitMQ. Queues of version 1 have none."""
MIN_CONSUMER_TIMEOUT_MS = 1_000
"""The lowest consumer timeout: some round trips, and time for a pause of the client."""
MAX_ARGUMENTS_BYTES = 4 << 10
"""Maximum size of names and texts of one queue's or policy's arguments. Every member keeps them, and every snapshot of
the catalog and every listing contains them."""
MAX_ALL_ARGUMENTS_BYTES = 32 << 20
"""The same of all queues together: a snapshot of the catalog is made in one go."""

OVERFLOW_MODES = {mode.replace("_", "-"): mode for mode in OVERFLOWS}
"""The client's name of a mode -> its name in the code."""

STRATEGIES = {mode.replace("_", "-"): mode for mode in DEAD_LETTER_STRATEGIES if mode != "none"}
"""The client's name of a dead-letter strategy -> its name in the code."""

FILTERING = ("x-filter-field-names", "x-filter-max-in-memory-bytes-per-msg")
"""Arguments that have an effect only if x-filter-enabled is true."""
RETRYING = ("x-delayed-retry-min", "x-delayed-retry-max")
"""Arguments that x-message-groups excludes."""
NOT_SET = "not set"

UNSUPPORTED_ARGUMENTS = ("x-initial-group-size",)
"""Known arguments that this version does not support."""

HAVE_NO_COUNTERPART = {
    "x-queue-type": "every queue is a replicated queue",
    "x-queue-leader-locator": "a queue has the leader of its Raft group",
    "x-quorum-initial-group-size": "a queue has a replica on every member of its Raft group",
}
"""Arguments of RabbitMQ that say where and how a queue is stored, and what holds here. The nearest known name would
mislead."""


class ArgumentError(ValueError):
    """A queue's name or argument is refused; this is the caller's fault. The text says what is allowed."""


def check_queue_name(name: str) -> None:
    """Check for 1 to 255 bytes of UTF-8 without control characters; raises ArgumentError."""
    check_text("queue name", name)


def check_text(what: str, text: str, least_bytes: int = 1) -> None:
    """Check for least_bytes to MAX_NAME_BYTES bytes of UTF-8 without control characters; raises ArgumentError."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{what} {text!r} is not valid UTF-8") from error
    if not least_bytes <= size <= MAX_NAME_BYTES:
        article = "an" if what[0] in "aeiou" else "a"
        raise ArgumentError(f"{article} {what} of {size} bytes; allowed: {least_bytes}..{MAX_NAME_BYTES}")
    for character in text:
        if character < " " or "\x7f" <= character <= "\x9f":
            raise ArgumentError(f"{what} {text!r} has the control character {character!r}; none is allowed")


def effective_config(
    name: str, arguments: Mapping[str, ArgumentValue], version: int = CURRENT
) -> QueueConfig:
    """The queue's configuration with every default filled in. version: the machine version in use. Raises ArgumentError
    for the first bad argument by name."""
    check_queue_name(name)
    _check_names(arguments, version)
    checked = {
        argument: known.check(argument, arguments[argument])
        for argument, known in SUPPORTED.items()
        if argument in arguments
    }
    if not checked.get("x-filter-enabled"):
        for argument in FILTERING:
            if argument in checked:
                raise ArgumentError(f"argument {argument!r} needs 'x-filter-enabled' to be true as well")
    elif checked.get("x-single-active-consumer"):
        raise ArgumentError("arguments 'x-filter-enabled' and 'x-single-active-consumer' exclude each other")
    else:
        names = checked.get("x-filter-field-names", DEFAULT_FIELD_NAMES)
        assert isinstance(names, tuple)
        checked["x-filter-field-names"] = tuple(sorted(names))
    if checked.get("x-message-groups") and checked.get("x-single-active-consumer"):
        raise ArgumentError("arguments 'x-message-groups' and 'x-single-active-consumer' exclude each other")
    if checked.get("x-message-groups"):
        for argument in RETRYING:
            if argument in checked:
                raise ArgumentError(
                    f"arguments {argument!r} and 'x-message-groups' exclude each other: later messages of a group "
                    "would be delivered before one that was returned"
                )
    if "x-dead-letter-exchange" in checked:
        checked.setdefault("x-dead-letter-strategy", "at_least_once")
    else:  # without an exchange there is no target: the strategy waits for a policy that names one
        checked.pop("x-dead-letter-strategy", None)
    values: dict[str, Any] = {SUPPORTED[argument].attribute: value for argument, value in checked.items()}
    return QueueConfig(name, **values)


def with_defaults(arguments: Arguments, version: int) -> Arguments:
    """A queue's arguments with those that it has by default. version: that of the entry that declared the queue."""
    if version < LIMITED_DELIVERIES or any(argument == "x-delivery-limit" for argument, _ in arguments):
        return arguments
    return tuple(sorted((*arguments, ("x-delivery-limit", DELIVERY_LIMIT))))


def with_past_defaults(arguments: Arguments, version: int) -> Arguments:
    """The arguments with which a new queue means the same as one with these arguments that an entry of this version has
    declared: defaults that have changed since are given."""
    if version >= LIMITED_DELIVERIES or any(argument == "x-delivery-limit" for argument, _ in arguments):
        return arguments
    return tuple(sorted((*arguments, ("x-delivery-limit", -1))))


def needed_version(arguments: Iterable[str]) -> int:
    """The machine version that the cluster has to use for these arguments; FIRST if any version will do."""
    return max((SUPPORTED[each].since for each in arguments if each in SUPPORTED), default=FIRST)


def size_of(arguments: Iterable[tuple[str, ArgumentValue]]) -> int:
    """The bytes of the names and texts of arguments."""
    texts = [text for argument in arguments for text in argument if isinstance(text, str)]
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def check_size(arguments: Mapping[str, ArgumentValue]) -> None:
    """Raise ArgumentError if the arguments of a new queue or policy are too large. Those of entries of version 1 may be
    larger."""
    size = size_of(arguments.items())
    if size > MAX_ARGUMENTS_BYTES:
        raise ArgumentError(
            f"arguments of {size} bytes (names and texts); allowed: {MAX_ARGUMENTS_BYTES} together"
        )


def differences(
    wanted: QueueConfig,
    present: QueueConfig,
    given: Mapping[str, ArgumentValue],
    declared: Mapping[str, ArgumentValue],
) -> str:
    """The changes that a second declaration would make, in the words of arguments. given: the arguments of that
    declaration, which come first. declared: those of the first one. An argument of neither declaration is not named: it
    differs only because another one does."""
    found, not_given = [], []
    for argument, known in SUPPORTED.items():
        new, old = getattr(wanted, known.attribute), getattr(present, known.attribute)
        if argument == "x-dead-letter-exchange":
            # an empty one is the default exchange; without one there is no target
            is_same = (new, wanted.dead_letter_strategy) == (old, present.dead_letter_strategy)
        elif argument == "x-dead-letter-strategy":
            is_same = new == old or "none" in (new, old)  # a queue without an exchange has none
        else:
            is_same = new == old
        if is_same or not (argument in given or argument in declared):
            continue
        was = _outward(declared[argument]) if argument in declared else _default(old)
        if argument in given:
            found.append(f"{argument} is {was}, not {_outward(given[argument])}")
        elif _default(new) == NOT_SET:
            not_given.append(f"{argument} is {was}, and was not given")
        else:
            not_given.append(f"{argument} is {was}, not {_default(new)}, the default")
    return "; ".join(found + not_given)


def check_policy_arguments(arguments: Mapping[str, ArgumentValue], version: int = CURRENT) -> None:
    """Check that a policy may set these arguments to these values. version: the machine version in use. Raises
    ArgumentError for the first bad one by name."""
    if not arguments:
        raise ArgumentError(f"a policy without arguments; it may set {', '.join(BY_POLICY)}")
    _check_names(arguments, version)
    for argument in sorted(arguments):
        if argument not in BY_POLICY:
            raise ArgumentError(
                f"argument {argument!r} is fixed when a queue is declared; "
                f"a policy may set {', '.join(BY_POLICY)}"
            )
        SUPPORTED[argument].check(argument, arguments[argument])


def merged(own: Arguments, policy: Arguments) -> Arguments:
    """A queue's own arguments with those of the policy that applies to it; both were checked. Arguments that the queue
    cannot use, because it does not filter or has message groups, are left out."""
    found = dict(own)
    for argument, value in policy:
        if argument in FILTERING and found.get("x-filter-enabled") is not True:
            continue
        if argument in RETRYING and found.get("x-message-groups") is True:
            continue
        found[argument] = BY_POLICY[argument](found[argument], value) if argument in found else value
    return tuple((argument, found[argument]) for argument in sorted(found))


_Checked = bool | int | str | tuple[str, ...]


def _check_names(arguments: Mapping[str, ArgumentValue], version: int) -> None:
    for argument in sorted(arguments):
        if argument in UNSUPPORTED_ARGUMENTS:
            raise ArgumentError(f"argument {argument!r} is not supported by this version")
        if argument not in SUPPORTED:
            raise ArgumentError(f"unknown argument {argument!r}{_nearest(argument)}")
        if SUPPORTED[argument].since > version:
            # a build that does not know the argument gives the same reason, so that all members reply alike
            raise ArgumentError(
                f"argument {argument!r} needs machine version {SUPPORTED[argument].since}, "
                f"and the cluster uses {version}"
            )


def _nearest(argument: str) -> str:
    if argument in HAVE_NO_COUNTERPART:
        return f"; leave it out: {HAVE_NO_COUNTERPART[argument]}"
    close = difflib.get_close_matches(argument, sorted((*SUPPORTED, *UNSUPPORTED_ARGUMENTS)), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(SUPPORTED))}"


def _kind(value: ArgumentValue) -> str:
    words: dict[type, str] = {bool: "boolean", int: "integer", float: "double", str: "text", bytes: "bytes"}
    return f"{value!r} ({words.get(type(value), type(value).__name__)})"


def _boolean(argument: str, value: ArgumentValue) -> _Checked:
    if not isinstance(value, bool):
        raise ArgumentError(f"argument {argument!r} is {_kind(value)}; allowed: true, false")
    return value


def _integer(lowest: int, highest: int) -> Callable[[str, ArgumentValue], _Checked]:
    def check(argument: str, value: ArgumentValue) -> _Checked:
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise ArgumentError(
                f"argument {argument!r} is {_kind(value)}; allowed: an integer, {lowest}..{highest}"
            )
        return value

    return check


def _overflow(argument: str, value: ArgumentValue) -> _Checked:
    if not isinstance(value, str) or value not in OVERFLOW_MODES:
        raise ArgumentError(f"argument {argument!r} is {_kind(value)}; allowed: {', '.join(OVERFLOW_MODES)}")
    return OVERFLOW_MODES[value]


def _queue_mode(argument: str, value: ArgumentValue) -> _Checked:
    if not isinstance(value, str) or value not in QUEUE_MODES:
        raise ArgumentError(f"argument {argument!r} is {_kind(value)}; allowed: {', '.join(QUEUE_MODES)}")
    return value


def _strategy(argument: str, value: ArgumentValue) -> _Checked:
    if not isinstance(value, str) or value not in STRATEGIES:
        raise ArgumentError(f"argument {argument!r} is {_kind(value)}; allowed: {', '.join(STRATEGIES)}")
    return STRATEGIES[value]


def _short_text(argument: str, value: ArgumentValue) -> _Checked:
    """Check a name or key that may be empty."""
    if not isinstance(value, str):
        raise ArgumentError(f"argument {argument!r} is {_kind(value)}; allowed: a text")
    check_text(f"value of {argument!r}", value, 0)
    return value


def _field_names(argument: str, value: ArgumentValue) -> _Checked:
    """Check a list of field names in one text with commas, because an argument's value is no list. Spaces around a name
    and repeats are dropped."""
    if not isinstance(value, str):
        raise ArgumentError(
            f"argument {argument!r} is {_kind(value)}; allowed: field names in one text, with commas"
        )
    names = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    try:
        resolve_field_names(names)
    except FieldNameError as error:
        raise ArgumentError(f"argument {argument!r}: {error}") from error
    return names


_Choice = Callable[[ArgumentValue, ArgumentValue], ArgumentValue]


def _own(own: ArgumentValue, policy: ArgumentValue) -> ArgumentValue:
    return own


def _policys(own: ArgumentValue, policy: ArgumentValue) -> ArgumentValue:
    return policy


def _smaller(own: ArgumentValue, policy: ArgumentValue) -> ArgumentValue:
    """The smaller of two limits; -1 is no limit."""
    assert isinstance(own, int) and isinstance(policy, int)
    limits = [each for each in (own, policy) if each >= 0]
    return min(limits, default=-1)


@dataclass(frozen=True, slots=True)
class Argument:
    """attribute: of QueueConfig, which has the default, too. check: returns the checked value, or raises ArgumentError.
    by_policy: chooses from (the queue's own value, the policy's), as RabbitMQ does; None if no policy may set the
    argument. since: the machine version that it came with; entries of earlier versions cannot use it."""

    attribute: str
    check: Callable[[str, ArgumentValue], _Checked]
    by_policy: _Choice | None
    since: int = FIRST


SUPPORTED = {
    "x-consumer-timeout": Argument(
        "consumer_timeout_ms", _integer(MIN_CONSUMER_TIMEOUT_MS, MAX_MESSAGE_TTL_MS), _smaller, since=2
    ),
    "x-dead-letter-exchange": Argument("dead_letter_exchange", _short_text, _own, since=2),
    "x-dead-letter-routing-key": Argument("dead_letter_routing_key", _short_text, _own, since=2),
    "x-dead-letter-strategy": Argument("dead_letter_strategy", _strategy, _own, since=2),
    "x-delayed-retry-max": Argument(
        "delayed_retry_max_ms", _integer(1, MAX_MESSAGE_TTL_MS), _smaller, since=2
    ),
    "x-delayed-retry-min": Argument(
        "delayed_retry_min_ms", _integer(1, MAX_MESSAGE_TTL_MS), _smaller, since=2
    ),
    "x-delivery-limit": Argument("delivery_limit", _integer(-1, MAX_COUNT), _smaller),
    "x-expires": Argument("expires_ms", _integer(1, MAX_EXPIRES_MS), _smaller, since=2),
    "x-filter-enabled": Argument("filter_enabled", _boolean, None),
    "x-filter-field-names": Argument("filter_field_names", _field_names, _own),
    "x-filter-max-in-memory-bytes-per-msg": Argument(
        "filter_max_in_memory_bytes_per_msg", _integer(0, MAX_FILTER_BYTES), _smaller
    ),
    "x-max-consumers": Argument("max_consumers", _integer(1, MAX_COUNT), _smaller, since=2),
    "x-max-length": Argument("max_length", _integer(1, MAX_COUNT), _smaller),
    "x-max-length-bytes": Argument("max_length_bytes", _integer(1, MAX_COUNT), _smaller, since=2),
    "x-max-priority": Argument("max_priority", _integer(1, MAX_PRIORITY), None, since=2),
    "x-message-groups": Argument("message_groups", _boolean, None, since=2),
    "x-message-ttl": Argument("message_ttl_ms", _integer(0, MAX_MESSAGE_TTL_MS), _smaller),
    "x-overflow": Argument("overflow", _overflow, _policys),
    "x-queue-mode": Argument("queue_mode", _queue_mode, _own),
    "x-single-active-consumer": Argument("single_active_consumer", _boolean, None, since=2),
}
"""All supported arguments, by name. To add one: a line here, a field with the same default in QueueConfig, and a line
with the same version at the end of CONFIG (fifo/layouts.py). docs/changing.md lists the other places."""

BY_POLICY = {
    argument: known.by_policy for argument, known in SUPPORTED.items() if known.by_policy is not None
}
"""The arguments that a policy may set, because they may change while a queue is in use, with their choices."""


def _outward(value: ArgumentValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return NOT_SET if value == -1 else repr(value)


def _default(value: object) -> str:
    """An argument that was not given, by the value that QueueConfig has for it."""
    if isinstance(value, tuple):
        value = ",".join(value)
    if isinstance(value, str):
        return repr(value.replace("_", "-")) if value else NOT_SET
    assert isinstance(value, bool | int)
    return _outward(value)
