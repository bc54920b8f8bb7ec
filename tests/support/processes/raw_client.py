"""A client that speaks the session protocol by hand: patient where the real one would reconnect, rude where
the real one would refuse to send."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Self

import grpc
from google.rpc import error_details_pb2, status_pb2

from quorum.v1 import queue_pb2, queue_pb2_grpc

ANSWER_LIMIT_S = 60.0
FRAME_BYTES = 64 << 20


def reason_of(status: Any) -> str:
    """ErrorInfo.reason of a google.rpc.Status; empty if it has none."""
    info = error_details_pb2.ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info):
            return info.reason
    return ""


def status_of(error: grpc.aio.AioRpcError) -> Any:
    """The google.rpc.Status of a failed call."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            return status_pb2.Status.FromString(value)
    return status_pb2.Status(code=error.code().value[0], message=error.details() or "")


class RawSession:
    """One stream. No keepalive, no reconnect: it hears whatever the node still sends."""

    def __init__(self, address: str) -> None:
        options = [
            ("grpc.max_send_message_length", FRAME_BYTES),
            ("grpc.max_receive_message_length", FRAME_BYTES),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self.channel = grpc.aio.insecure_channel(address, options=options)
        self.call: Any = queue_pb2_grpc.QueueStub(self.channel).Session()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.cancel()
        await self.channel.close()

    async def open(self, producer_id: bytes | None = None, epoch: int = 1) -> Any:
        await self.send(open=queue_pb2.Open(producer_id=producer_id or secrets.token_bytes(16), epoch=epoch))
        return await self.answer("opened")

    async def send(self, **request: Any) -> None:
        await self.call.write(queue_pb2.SessionRequest(**request))

    async def read(self) -> Any:
        """The next response; None at the end. Raises AioRpcError if the stream ended badly."""
        response = await asyncio.wait_for(self.call.read(), ANSWER_LIMIT_S)
        return None if response is grpc.aio.EOF else response

    async def answer(self, kind: str) -> Any:
        """The next response of this kind; others are passed over."""
        while (response := await self.read()) is not None:
            if response.WhichOneof("response") == kind:
                return getattr(response, kind)
        raise AssertionError(f"the stream ended without {kind}")

    async def end(self) -> Any:
        """Reads to the end; the google.rpc.Status of it."""
        try:
            while await self.read() is not None:
                pass
        except grpc.aio.AioRpcError as error:
            return status_of(error)
        return status_pb2.Status()
