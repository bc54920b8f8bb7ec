"""What a client may get wrong, sent to real members by hand: a clear status with a reason, and the member
stays up.

Needs the whole service: `python -m quorum node` is started.
"""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import quorum
from quorum.client import Message, encode_batch
from quorum.client.values import arguments
from quorum.local_cluster.cluster import LocalCluster
from quorum.v1 import admin_pb2, admin_pb2_grpc, queue_pb2, queue_pb2_grpc
from support.processes.load import CONNECT_LIMIT_MS
from support.processes.raw_client import FRAME_BYTES, RawSession, reason_of, status_of

PLAIN, FILTERED = "plain", "filtered"
MAX_FIELD_BYTES = 1_000
MAX_GROWTH_BYTES = 64 << 20
"""What one refused request may leave a member larger by."""
MESSAGE_TOO_LARGE = bytes((16 << 20) + 1)


@pytest.fixture(scope="module")
def address(shared_cluster: LocalCluster) -> Iterator[str]:
    """A member with both queues. It must be the same process at the end."""
    member = shared_cluster.members[0]
    before = shared_cluster.process(member.name)

    async def declare() -> None:
        async with quorum.connect(shared_cluster.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            await client.declare(PLAIN)
            limits = {"x-filter-enabled": True, "x-filter-max-in-memory-bytes-per-msg": MAX_FIELD_BYTES}
            await client.declare(FILTERED, limits)

    asyncio.run(declare())
    yield member.client
    assert shared_cluster.process(member.name) == before, "the member did not survive"
    assert shared_cluster.is_serving(member.name)


def check_session(
    address: str, talk: Callable[[RawSession], Awaitable[Any]], code: grpc.StatusCode, *reasons: str
) -> None:
    """The status that `talk` answers has this code and one of these reasons; a good publish still works."""

    async def scenario() -> Any:
        async with RawSession(address) as session:
            status = await talk(session)
        async with quorum.connect(f"quorum://{address}", connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            await client.publish(PLAIN, b"still here")
        return status

    status = asyncio.run(scenario())
    assert (status.code, reason_of(status) in reasons) == (code.value[0], True), status
    assert len(status.message) > 10, "a message for people"


def publishing(
    queue: str, batch: bytes, first: int = 1, lowest: int = 1
) -> Callable[[RawSession], Awaitable[Any]]:
    async def talk(session: RawSession) -> Any:
        await session.open()
        await session.send(
            publish=queue_pb2.PublishBatch(
                routing_key=queue, first_sequence=first, lowest_unconfirmed=lowest, batch=batch
            )
        )
        confirms = await session.answer("confirms")
        assert not confirms.confirmed
        return confirms.rejected[0].status

    return talk


def attaching(**attach: Any) -> Callable[[RawSession], Awaitable[Any]]:
    async def talk(session: RawSession) -> Any:
        await session.open()
        request = {"request_id": 7, "consumer_tag": "c", "queue": FILTERED, "credit_to": 10, **attach}
        await session.send(attach=queue_pb2.Attach(**request))
        failed = await session.answer("failed")
        assert failed.request_id == 7
        return failed.status

    return talk


GOOD = encode_batch([b"one", b"two"]).data
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("batch", "code", "reason"),
    [
        pytest.param(b"\xff\xfe\xfd garbage", INVALID, "BAD_BATCH", id="garbage bytes"),
        pytest.param(b"", INVALID, "BAD_BATCH", id="nothing"),
        pytest.param(GOOD[: len(GOOD) // 2], INVALID, "BAD_BATCH", id="half a batch"),
        pytest.param(
            queue_pb2.MessageBatch(count=3, bodies=b"abc", body_ends=[1, 3]).SerializeToString(),
            INVALID,
            "BAD_BATCH",
            id="an end too few",
        ),
        pytest.param(
            queue_pb2.MessageBatch(count=2, bodies=b"abc", body_ends=[3, 1]).SerializeToString(),
            INVALID,
            "BAD_BATCH",
            id="ends that go back",
        ),
        pytest.param(
            queue_pb2.MessageBatch(count=2, bodies=b"abc", body_ends=[1, 900]).SerializeToString(),
            INVALID,
            "BAD_BATCH",
            id="an end beyond the bodies",
        ),
        pytest.param(
            queue_pb2.MessageBatch(count=4_000_000_000, bodies=b"", body_ends=[0]).SerializeToString(),
            INVALID,
            "BAD_BATCH",
            id="a count of four billion",
        ),
        pytest.param(
            encode_batch([MESSAGE_TOO_LARGE]).data,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "MESSAGE_TOO_LARGE BATCH_TOO_LARGE",
            id="an oversized message",
        ),
    ],
)
def test_a_bad_batch_is_rejected(address: str, batch: bytes, code: grpc.StatusCode, reason: str) -> None:
    check_session(address, publishing(PLAIN, batch), code, *reason.split())


def test_an_unknown_queue_is_rejected(address: str) -> None:
    check_session(address, publishing("nowhere", GOOD), grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
    check_session(address, attaching(queue="nowhere"), grpc.StatusCode.NOT_FOUND, "NOT_FOUND")


def test_oversized_metadata_is_rejected(address: str) -> None:
    batch = encode_batch([Message(b"", None, {"note": "x" * 2 * MAX_FIELD_BYTES})]).data
    check_session(
        address, publishing(FILTERED, batch), grpc.StatusCode.RESOURCE_EXHAUSTED, "METADATA_TOO_LARGE"
    )


@pytest.mark.parametrize(("first", "lowest"), [(0, 1), (1, 2), (1, 0), (70_000, 1)])
def test_wrong_sequences_are_rejected(address: str, first: int, lowest: int) -> None:
    check_session(address, publishing(PLAIN, GOOD, first, lowest), INVALID, "WRONG_SEQUENCE")


@pytest.mark.parametrize(
    ("attach", "reason"),
    [
        ({"selector": "colour = = 'red'"}, "BAD_SELECTOR"),
        ({"selector": "(" * 5000}, "BAD_SELECTOR"),
        ({"selector": "a = 'x"}, "BAD_SELECTOR"),
        ({"selector": "\x00\ud7ff"}, "BAD_SELECTOR"),
        ({"selector": "a = 1", "queue": PLAIN}, "FILTER_NOT_ENABLED"),
        ({"selector": "JMSReplyTo = 'x'"}, "FIELD_NOT_KEPT BAD_SELECTOR"),
        ({"consumer_tag": ""}, "BAD_ARGUMENT"),
        ({"consumer_tag": "x" * 1_000}, "BAD_ARGUMENT"),
    ],
)
def test_a_bad_attach_is_refused(address: str, attach: dict[str, Any], reason: str) -> None:
    check_session(address, attaching(**attach), INVALID, *reason.split())


def test_a_selector_error_says_where(address: str) -> None:
    async def scenario() -> quorum.client.errors.QuorumError:
        async with quorum.connect(f"quorum://{address}") as client:
            with pytest.raises(quorum.client.errors.RefusedError) as refused:
                await client.consume(FILTERED, selector="colour = = 'red'")
        return refused.value

    error = asyncio.run(scenario())
    assert error.metadata["line"] == "1"
    assert int(error.metadata["column"]) > 1
    assert "^" in str(error)


@pytest.mark.parametrize(
    "request_",
    [
        {"disposition": queue_pb2.Disposition(request_id=7, consumer_tag="nobody", outcome=1)},
        {"credit": queue_pb2.Credit(request_id=7, consumer_tag="nobody", credit_to=5)},
        {"cancel": queue_pb2.Cancel(request_id=7, consumer_tag="nobody")},
        {"get": queue_pb2.SessionGet(request_id=7, queue="nowhere", count=1)},
        {"get": queue_pb2.SessionGet(request_id=7, queue=PLAIN, count=4_000_000_000)},
    ],
)
def test_requests_about_nothing_are_refused(address: str, request_: dict[str, Any]) -> None:
    async def talk(session: RawSession) -> Any:
        await session.open()
        await session.send(**request_)
        return (await session.answer("failed")).status

    async def scenario() -> Any:
        async with RawSession(address) as session:
            return await talk(session)

    status = asyncio.run(scenario())
    assert reason_of(status) in ("NOT_ATTACHED", "NOT_FOUND", "BAD_ARGUMENT"), status


@pytest.mark.parametrize(
    "request_",
    [
        {
            "publish": queue_pb2.PublishBatch(
                routing_key=PLAIN, first_sequence=1, lowest_unconfirmed=1, batch=GOOD
            )
        },
        {"open": queue_pb2.Open(producer_id=b"short", epoch=1)},
        {"open": queue_pb2.Open(producer_id=bytes(16), epoch=0)},
    ],
)
def test_a_session_that_does_not_begin_well_is_ended(address: str, request_: dict[str, Any]) -> None:
    async def talk(session: RawSession) -> Any:
        await session.send(**request_)
        return await session.end()

    check_session(address, talk, INVALID, "BAD_SESSION")


def test_a_second_open_ends_the_session(address: str) -> None:
    async def talk(session: RawSession) -> Any:
        await session.open()
        await session.send(open=queue_pb2.Open(producer_id=bytes(16), epoch=1))
        return await session.end()

    check_session(address, talk, INVALID, "BAD_SESSION")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"x-overflow": "drop-tail"}, "drop-head"),
        ({"x-max-length": -5}, "x-max-length"),
        ({"x-max-length": "many"}, "x-max-length"),
        ({"x-filter-enabled": 1}, "x-filter-enabled"),
        ({"x-max-lenght": 5}, "x-max-length"),
    ],
)
def test_a_bad_argument_is_refused_and_named(address: str, given: dict[str, object], named: str) -> None:
    status = asyncio.run(
        _admin(
            address, "DeclareQueue", admin_pb2.DeclareQueueRequest(queue="new", arguments=arguments(given))
        )
    )
    assert (status.code, reason_of(status)) == (INVALID.value[0], "BAD_ARGUMENT"), status
    assert named in status.message


@pytest.mark.parametrize("name", ["", "x" * 1_000, "line\nbreak"])
def test_a_bad_queue_name_is_refused(address: str, name: str) -> None:
    status = asyncio.run(_admin(address, "DeclareQueue", admin_pb2.DeclareQueueRequest(queue=name)))
    assert (status.code, reason_of(status)) == (INVALID.value[0], "BAD_ARGUMENT"), status


def test_unary_calls_about_an_unknown_queue_are_refused(address: str) -> None:
    for method, request in (
        ("DescribeQueue", admin_pb2.DescribeQueueRequest(queue="nowhere")),
        ("PurgeQueue", admin_pb2.PurgeQueueRequest(queue="nowhere")),
        ("DeleteQueue", admin_pb2.DeleteQueueRequest(queue="nowhere")),
    ):
        status = asyncio.run(_admin(address, method, request))
        assert (status.code, reason_of(status)) == (grpc.StatusCode.NOT_FOUND.value[0], "NOT_FOUND"), status


async def _admin(address: str, method: str, request: Any) -> Any:
    """The google.rpc.Status of an administrative call that has to fail."""
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await getattr(admin_pb2_grpc.AdminStub(channel), method)(request)
    return status_of(failed.value)


def test_bytes_that_are_no_request_end_the_call_only(address: str) -> None:
    async def scenario() -> grpc.StatusCode:
        options = [("grpc.max_send_message_length", FRAME_BYTES)]
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            call = channel.stream_stream("/quorum.v1.Queue/Session")()
            try:
                await call.write(b"\xff" * 100)
                await call.read()
            except grpc.aio.AioRpcError:
                pass
            code: grpc.StatusCode = await call.code()
            with pytest.raises(grpc.aio.AioRpcError):
                await queue_pb2_grpc.QueueStub(channel).Publish(
                    queue_pb2.PublishRequest(queue=PLAIN, messages=[queue_pb2.Message(body=bytes(40 << 20))])
                )
        return code

    assert asyncio.run(scenario()) != grpc.StatusCode.OK


def test_a_settle_under_an_attachment_that_is_over_is_refused_and_changes_nothing(address: str) -> None:
    """The fencing token of a delivery is its attach index: whoever lost a message cannot settle it."""

    async def attach(session: RawSession) -> int:
        await session.open()
        await session.send(
            attach=queue_pb2.Attach(request_id=1, consumer_tag="fenced", queue="fencing", credit_to=1)
        )
        attached: int = (await session.answer("attached")).attach
        assert (await session.answer("delivery")).first_tag == 1
        return attached

    async def scenario() -> Any:
        async with quorum.connect(f"quorum://{address}", connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            await client.declare("fencing")
            await client.publish("fencing", b"one")
            async with RawSession(address) as earlier:
                before = await attach(earlier)
            async with RawSession(address) as later:
                assert await attach(later) != before
                disposition = queue_pb2.Disposition(
                    request_id=2,
                    consumer_tag="fenced",
                    attach=before,
                    tags=[queue_pb2.Range(first=1, last=1)],
                    outcome=queue_pb2.Disposition.SETTLE,
                )
                await later.send(disposition=disposition)
                status = (await later.answer("failed")).status
                assert (await client.describe("fencing")).queue.checked_out == 1, (
                    "it was settled all the same"
                )
        return status

    status = asyncio.run(scenario())
    assert reason_of(status) == "WRONG_ATTACH", status


PICKLE_THAT_RUNS = b"cos\nsystem\n(S'touch %s'\ntR."
RUBBISH_LIMIT_S = 30.0


@pytest.mark.parametrize(
    "rubbish",
    [
        pytest.param(PICKLE_THAT_RUNS, id="a pickle that runs a command"),
        pytest.param(
            (200).to_bytes(4, "big") + PICKLE_THAT_RUNS.ljust(200, b"."), id="the same with a length"
        ),
        pytest.param(zlib.compress(bytes(50 << 20)), id="50 MB of zeros, compressed"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="HTTP"),
        pytest.param(bytes(1 << 20), id="zeros"),
        pytest.param(b"\xff" * (1 << 20), id="ones"),
    ],
)
def test_a_stranger_on_the_peers_port_is_refused_unheard(
    address: str, shared_cluster: LocalCluster, tmp_path: Path, rubbish: bytes
) -> None:
    """It ends without an answer, nothing of it is carried out, and the member is as large as before."""
    member = shared_cluster.members[0]
    trace = tmp_path / "trace"
    before = shared_cluster.processes.resident_bytes()[member.name]
    host, port = member.peer.rsplit(":", 1)
    with socket.create_connection((host, int(port)), RUBBISH_LIMIT_S) as stranger:
        try:
            stranger.sendall(rubbish.replace(b"%s", str(trace).encode()))
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1 << 16) == b"", "a stranger was answered"
        except OSError:
            pass  # refused before it had said all
    assert not trace.exists(), "the member has run what a stranger sent"
    assert shared_cluster.processes.resident_bytes()[member.name] < before + MAX_GROWTH_BYTES


def test_a_request_that_is_small_on_the_wire_and_huge_unpacked_is_refused(
    address: str, shared_cluster: LocalCluster
) -> None:
    """Compressed requests are refused by their encoding: here 20 MB of zeros, a thousandth of that on the wire."""
    name = shared_cluster.members[0].name
    before = shared_cluster.processes.resident_bytes()[name]

    async def scenario() -> None:
        options = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(
            address, options=options, compression=grpc.Compression.Gzip
        ) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/quorum.v1.Queue/Publish")(
                    bytes(20 << 20), timeout=RUBBISH_LIMIT_S
                )
            assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED, refused.value

    asyncio.run(scenario())
    assert shared_cluster.processes.resident_bytes()[name] < before + MAX_GROWTH_BYTES
