"""Every call with extreme values, made from the descriptors, against a real member: each has a clear status, and the
member is alive and answers afterwards."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

import quorum
from quorum.local_cluster.cluster import LocalCluster
from quorum.v1 import queue_pb2
from support.hostile import extremes
from support.processes.load import CONNECT_LIMIT_MS

CALL_LIMIT_S = 1.0
"""A call may wait longer for what does not come; then it has been looked at."""
ANSWER_LIMIT_S = 0.2
AT_A_TIME = 16
SESSIONS_AT_A_TIME = 48
"""Most of them wait for an answer that does not come."""
AT_RANDOM = 10
DEFECTS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
LARGEST_MESSAGE = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One member, with a queue that keeps filter fields."""
    with LocalCluster(tmp_path_factory.mktemp("extremes") / "cluster", 1) as cluster:
        yield cluster


def requests_of(method: MethodDescriptor, chance: random.Random) -> Iterator[Any]:
    yield from extremes.one_at_a_time(method.input_type)
    for _ in range(AT_RANDOM):
        yield extremes.at_random(method.input_type, chance)


async def call(channel: grpc.aio.Channel, method: MethodDescriptor, request: Any) -> grpc.StatusCode:
    """The status of a call with this as its only request, or after an ordinary open."""
    path = extremes.path_of(method)
    try:
        if method.name == "Session":
            return await talk(channel, path, request)
        data = request.SerializeToString()
        if method.server_streaming:
            answers = channel.unary_stream(path)(data, timeout=CALL_LIMIT_S)
            async for _ in answers:
                pass
        elif method.client_streaming:
            await channel.stream_unary(path)(iter([data]), timeout=CALL_LIMIT_S)
        else:
            await channel.unary_unary(path)(data, timeout=CALL_LIMIT_S)
    except grpc.aio.AioRpcError as error:
        if error.code() in DEFECTS:
            raise AssertionError(f"{path}: {error.details()}\n{str(request)[:500]}") from error
        return error.code()
    return grpc.StatusCode.OK


async def talk(channel: grpc.aio.Channel, path: str, request: Any) -> grpc.StatusCode:
    session: Any = channel.stream_stream(path)(timeout=10 * CALL_LIMIT_S)
    wanted = [request]
    if request.WhichOneof("request") != "open":
        opening = queue_pb2.Open(producer_id=random.randbytes(16), epoch=1)
        attach = queue_pb2.Attach(request_id=1, consumer_tag=extremes.CONSUMER, queue=extremes.QUEUE)
        wanted = [queue_pb2.SessionRequest(open=opening), queue_pb2.SessionRequest(attach=attach), request]
    try:
        for each in wanted:
            await session.write(each.SerializeToString())
        async with asyncio.timeout(ANSWER_LIMIT_S):
            while await session.read() is not grpc.aio.EOF:
                pass
    except (TimeoutError, asyncio.InvalidStateError):
        session.cancel()
    return grpc.StatusCode.OK


def test_no_call_with_extreme_values_finds_a_defect(member: LocalCluster) -> None:
    chance = random.Random(7)
    codes: Counter[str] = Counter()
    name = member.members[0].name

    async def scenario() -> None:
        async def one(
            turn: asyncio.Semaphore, channel: grpc.aio.Channel, method: MethodDescriptor, request: Any
        ) -> None:
            async with turn:
                codes[(await call(channel, method, request)).name] += 1

        async with quorum.connect(member.url, connect_timeout_ms=CONNECT_LIMIT_MS) as client:
            for method in extremes.methods():
                await client.declare(extremes.QUEUE, {"x-filter-enabled": True})
                await client.publish(extremes.QUEUE, b"a message")
                async with grpc.aio.insecure_channel(
                    member.members[0].client, options=LARGEST_MESSAGE
                ) as channel:
                    turn = asyncio.Semaphore(SESSIONS_AT_A_TIME if method.name == "Session" else AT_A_TIME)
                    asked = [one(turn, channel, method, each) for each in requests_of(method, chance)]
                    await asyncio.gather(*asked)
                assert member.is_serving(name), f"{method.full_name}: {member.processes.last_output(name)}"

    before = member.process(name)
    asyncio.run(scenario())
    assert member.process(name) == before, member.processes.last_output(name)
    output = member.member(name).output.read_text(encoding="utf-8")
    assert "Traceback" not in output, output[-4_000:]
    assert codes["OK"] > 100, codes
    assert codes["INVALID_ARGUMENT"] > 100, codes
