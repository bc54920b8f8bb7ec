"""`quorum publish|consume|browse`: messages between a terminal, files and queues."""

from __future__ import annotations

import concurrent.futures
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from quorum.cli.console import (
    EXPLAIN_LIMIT_MS,
    LONG_S,
    PATIENCE_S,
    TIMEOUT_S,
    WHERE_TO_LOOK,
    CliError,
    FilterApplicationOption,
    FilterPropertyOption,
    Patience,
    SelectorOption,
    TimeoutOption,
    UrlOption,
    connected,
    explain,
    filter_argument,
    note,
    pairs,
    served,
)
from quorum.counts import counted

if TYPE_CHECKING:
    from quorum.cli.json_lines import Received
    from quorum.client import Message
    from quorum.client.values import FieldValue
    from quorum.sync import Client, Consumer, Transaction

    Add = Callable[[Transaction, list[Message]], None]
    Send = Callable[[Client, list[Message]], concurrent.futures.Future[int]]

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="the queue's name")]
JsonLinesOption = Annotated[
    bool, typer.Option("--json-lines", "-j", help="a message a line, as JSON with properties")
]
PositionsOption = Annotated[
    bool, typer.Option("--positions", help="JSON lines with sequence, redelivered and delivery_count too")
]

UNDER_WAY = 16
"""Batches sent and not yet confirmed."""
PART_BYTES = 1 << 20
"""Bytes of the bodies of one batch, unless a single message is larger."""
MAX_KEPT = 65_536
FIRST_MESSAGE_MS = 1_000
"""Least wait for the first message, if the attaching took long."""
LAST_SEQUENCE = (1 << 64) - 1
TOO_FEW = 3
"""Exit status of a consume that ended before --count messages came."""
CONFIRM_S = 60.0
"""Without --timeout: the wait for a confirm."""


def publish(
    queue: Annotated[
        str | None,
        typer.Argument(metavar="QUEUE", help="the queue's name; with --exchange the first message"),
    ] = None,
    bodies: Annotated[list[str] | None, typer.Argument(metavar="BODY...", help="one message each")] = None,
    exchange: Annotated[
        str | None, typer.Option("--exchange", "-e", help="publish to this exchange instead of a queue")
    ] = None,
    key: Annotated[
        str, typer.Option("--key", "--routing-key", "-k", help="routing key of every message")
    ] = "",
    mandatory: Annotated[
        bool, typer.Option("--mandatory", help="fail if the exchange routes a message to no queue")
    ] = False,
    immediate: Annotated[
        bool, typer.Option("--immediate", help="fail if no consumer can take a message at once")
    ] = False,
    property_: Annotated[
        list[str] | None,
        typer.Option(
            "--property", "-p", metavar="NAME=VALUE", help="AMQP property of every message: subject=order"
        ),
    ] = None,
    application_property: Annotated[
        list[str] | None,
        typer.Option(
            "--application-property", "-a", metavar="NAME=VALUE", help="application property of every message"
        ),
    ] = None,
    json_lines: JsonLinesOption = False,
    whole: Annotated[bool, typer.Option("--whole", help="stdin is one message, not one a line")] = False,
    batch: Annotated[int, typer.Option(min=1, max=16_384, help="messages in a batch, at most")] = 500,
    delay: Annotated[
        float | None,
        typer.Option(min=0.0, help="seconds after which each message becomes ready for consumers"),
    ] = None,
    tx: Annotated[
        bool, typer.Option("--tx", help="all messages in one transaction: all are published, or none")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.0, help=f"give up after this many seconds without a confirm; without it {CONFIRM_S:g}"
        ),
    ] = None,
    url: UrlOption = None,
) -> None:
    """Publish arguments, or stdin: one message a line, or JSON lines. Ends when all messages are confirmed."""
    from quorum.client import Message
    from quorum.client.session.publisher import MAX_ROUTED
    from quorum.client.values import MAX_DELAY_S

    if exchange is None:
        if queue is None:
            raise CliError("name a queue, or an exchange with --exchange")
        if key or mandatory:
            raise CliError("--key and --mandatory need --exchange")
    elif queue is not None:
        bodies = [queue, *(bodies or ())]
    if bodies and (json_lines or whole):
        raise CliError("messages come from arguments or from stdin, not both")
    if json_lines and whole:
        raise CliError("--json-lines and --whole exclude each other")
    properties = pairs(property_, "property")
    if delay is not None:
        if not 0 <= delay <= MAX_DELAY_S:
            raise CliError(f"--delay {delay:g}; allowed: 0 to {MAX_DELAY_S} seconds")
        properties = {**properties, "delivery-delay": math.ceil(delay * 1000)}
    application = pairs(application_property, "application property")
    if not bodies and sys.stdin.isatty():
        form = "one message" if whole else "one JSON message a line" if json_lines else "one message a line"
        note(f"reads {form} from the terminal; Ctrl-D ends the input")
    messages: Iterable[Message]
    if json_lines:
        messages = _read_json_lines(properties, application)
    else:
        if bodies:
            texts: Iterable[bytes] = (body.encode("utf-8", "surrogateescape") for body in bodies)
        elif whole:
            texts = (sys.stdin.buffer.read(),)
        else:
            texts = (line.removesuffix(b"\n") for line in sys.stdin.buffer)
        messages = (Message(text, properties or None, application or None) for text in texts)

    def send(client: Client, part: list[Message]) -> concurrent.futures.Future[int]:
        if exchange is None:
            return client.send_batch(queue or "", part, immediate=immediate)
        return client.send_batch_to(exchange, key, part, mandatory=mandatory, immediate=immediate)

    def add(transaction: Transaction, part: list[Message]) -> None:
        if exchange is None:
            transaction.publish_batch(queue or "", part, immediate=immediate)
        else:
            transaction.publish_batch_to(exchange, key, part, mandatory=mandatory, immediate=immediate)

    most = batch if exchange is None else min(batch, MAX_ROUTED)
    patience = Patience(timeout, default_s=CONFIRM_S)
    if tx:
        count = _publish_together(url, add, messages, most, patience)
    else:
        count = _publish_all(url, send, messages, most, patience)
    place = queue if exchange is None else f"exchange {exchange}"
    print(f"published {counted(count, 'message')} to {place}")


def _read_json_lines(
    properties: Mapping[str, FieldValue], application: Mapping[str, FieldValue]
) -> Iterator[Message]:
    """Messages of stdin's lines. Properties of the options are added; those of a line take precedence."""
    from quorum.cli.json_lines import LineError, from_line
    from quorum.client import Message, Properties
    from quorum.client.errors import UsageError
    from quorum.client.values import encode_properties

    for number, line in enumerate(sys.stdin.buffer, 1):
        if not line.strip():
            continue
        try:
            message = from_line(line)
        except LineError as error:
            raise CliError(f"line {number}: {error}", 1) from error
        own = message.properties
        assert not isinstance(own, Properties)
        described = (
            {**properties, **(own or {})} or None,
            {**application, **(message.application_properties or {})} or None,
        )
        try:
            encode_properties(*described)
        except UsageError as error:
            raise CliError(f"line {number}: {error}", 1) from error
        yield Message(message.body, *described)


def _publish_all(
    url: str | None, send: Send, messages: Iterable[Message], size: int, patience: Patience
) -> int:
    """send: sends a part and returns the future of its confirm."""
    confirmed = 0
    with connected(url, patience) as client:
        waiting: deque[concurrent.futures.Future[int]] = deque()

        def confirm_one() -> int:
            found = _confirm(client, waiting.popleft(), confirmed, patience)
            patience.renew()
            return confirmed + found

        for part in _read(_parts(messages, size), patience):
            while waiting and waiting[0].done():
                confirmed = confirm_one()
            waiting.append(send(client, part))
            if len(waiting) >= UNDER_WAY:
                confirmed = confirm_one()
        while waiting:
            confirmed = confirm_one()
    return confirmed


def _publish_together(
    url: str | None, add: Add, messages: Iterable[Message], size: int, patience: Patience
) -> int:
    """The same in one transaction, which is rolled back if the messages cannot be read to their end."""
    from quorum.client.errors import OutcomeUnknown

    count = 0
    with connected(url, patience) as client:
        try:
            with client.transaction(timeout_ms=patience.left_ms()) as transaction:
                for part in _read(_parts(messages, size), patience):
                    add(transaction, part)
                    count += len(part)
        except OutcomeUnknown as error:
            raise OutcomeUnknown(
                f"{error}; if you publish the messages again, they may be there twice"
            ) from error
    return count


def _read(parts: Iterator[list[Message]], patience: Patience) -> Iterator[list[Message]]:
    """The parts. The time in which they are read does not count."""
    while True:
        with patience.paused():
            part = next(parts, None)
        if part is None:
            return
        yield part


def _confirm(
    client: Client, confirmation: concurrent.futures.Future[int], confirmed: int, patience: Patience
) -> int:
    """Wait for the oldest batch and return its number of messages. Reports why it waits, and gives up in the end."""
    limit_s = patience.limit_s
    explain_s = min(EXPLAIN_LIMIT_MS / 1000, limit_s / 5)

    def is_done(before_end_s: float, most_s: float = LONG_S) -> bool:
        wait_s = min(most_s, max(0.0, patience.left_s() - before_end_s))
        return bool(concurrent.futures.wait([confirmation], wait_s).done)

    if not is_done(explain_s, PATIENCE_S):
        if patience.left_s() > explain_s:
            cause = explain(client, int(explain_s * 1000))
            note(f"no message was confirmed for {PATIENCE_S:g} s; still trying. {cause}".rstrip())
        if not is_done(explain_s):
            cause = explain(client, int(explain_s * 1000))
            if not is_done(0.0):
                raise CliError(
                    f"no message was confirmed for {limit_s:g} s; {confirmed:,} were confirmed before. Those sent "
                    "since may have been published; if you publish them again, they may be there twice. "
                    f"{cause + '; ' if cause else ''}{WHERE_TO_LOOK}",
                    1,
                )
    return confirmation.result()


def _parts(messages: Iterable[Message], size: int) -> Iterator[list[Message]]:
    """Split messages into parts of at most `size` messages and about PART_BYTES."""
    part: list[Message] = []
    size_bytes = 0
    for message in messages:
        if part and (len(part) == size or size_bytes + len(message.body) > PART_BYTES):
            yield part
            part, size_bytes = [], 0
        part.append(message)
        size_bytes += len(message.body)
    if part:
        yield part


def consume(
    queue: QueueArgument,
    selector: SelectorOption = None,
    property_: FilterPropertyOption = None,
    application_property: FilterApplicationOption = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="end after this many messages; status 3 if fewer came"),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help=f"end after this many seconds without a message; also the limit of the wait for the cluster, "
            f"without it {TIMEOUT_S:g} s",
        ),
    ] = None,
    json_lines: JsonLinesOption = False,
    positions: PositionsOption = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="return messages to the queue instead of settling them")
    ] = False,
    prefetch: Annotated[
        int,
        typer.Option(
            min=1, max=65_536, help="highest number of unsettled messages; their bodies are in memory"
        ),
    ] = 1000,
    priority: Annotated[
        int, typer.Option(min=-10, max=10, help="consumers with a higher priority are served first")
    ] = 0,
    url: UrlOption = None,
) -> None:
    """Write messages to stdout and settle each when it is written. Runs until Ctrl-C, --count or --timeout.

    Status 3: --timeout ended it before --count messages came."""
    filters = filter_argument(property_, application_property)
    if selector is not None and filters is not None:
        raise CliError("a consumer has a selector or a property filter, not both")
    if keep and (count is None or count > MAX_KEPT):
        raise CliError(
            f"--keep needs --count of at most {MAX_KEPT}, because returned messages are delivered again"
        )
    if keep:
        prefetch = count or prefetch
    patience = Patience(timeout)
    with served(url, patience) as client:
        held = prefetch if count is None else min(prefetch, count)
        with client.consume(queue, selector, filters, prefetch=held, priority=priority) as consumer:
            patience.is_for_each_call = timeout is None
            found = _write_all(consumer, count, patience, json_lines or positions, positions, keep)
    if count is not None and found < count:
        note(f"received {found:,} of {counted(count, 'message')} before the time-out")
        raise typer.Exit(TOO_FEW)


def _write_all(
    consumer: Consumer, count: int | None, patience: Patience, as_json: bool, positions: bool, keep: bool
) -> int:
    """Write messages until there are `count`, or none comes in time. Returns their number."""
    left, written = count, 0
    first_ms = min(FIRST_MESSAGE_MS, int(patience.limit_s * 1000))
    while left is None or left > 0:
        limit_ms = max(first_ms, int(patience.left_s() * 1000))
        delivery = consumer.next_delivery(None if patience.is_for_each_call else limit_ms)
        if delivery is None:
            return written
        patience.renew()
        messages = [
            delivery[ordinal]
            for ordinal in range(min(delivery.count, delivery.count if left is None else left))
        ]
        for message in messages:
            _write(message, as_json, positions)
        sys.stdout.flush()
        written += len(messages)
        if left is not None:
            left -= len(messages)
        if not keep:
            consumer.settle_ranges([(messages[0].tag, messages[-1].tag)], wait=left == 0)
    return written


def browse(
    queue: QueueArgument,
    selector: SelectorOption = None,
    property_: FilterPropertyOption = None,
    application_property: FilterApplicationOption = None,
    start: Annotated[int, typer.Option(min=0, max=LAST_SEQUENCE, help="sequence to begin with")] = 0,
    count: Annotated[
        int,
        typer.Option("--count", "-n", min=0, max=LAST_SEQUENCE, help="highest number of messages; 0: all"),
    ] = 0,
    json_lines: JsonLinesOption = False,
    positions: PositionsOption = False,
    delayed: Annotated[
        bool, typer.Option("--delayed", help="the delayed messages instead of the ready ones")
    ] = False,
    url: UrlOption = None,
    timeout: TimeoutOption = None,
) -> None:
    """Write ready or delayed messages to stdout in order, without removing them."""
    filters = filter_argument(property_, application_property)
    if selector is not None and filters is not None:
        raise CliError("give a selector or a property filter, not both")
    with served(url, Patience(timeout, is_for_each_call=True)) as client:
        found = client.browse(queue, selector, start, count, property_filter=filters, delayed=delayed)
        for message in found:
            _write(message, json_lines or positions, positions)


def _write(message: Received, as_json: bool, positions: bool) -> None:
    if as_json:
        from quorum.cli.json_lines import to_line

        sys.stdout.write(to_line(message, positions) + "\n")
    else:
        sys.stdout.buffer.write(message.body + b"\n")
