"""A session of a user at a served member, request by request."""

from __future__ import annotations

from typing import Any

import grpc
from google.rpc import error_details_pb2

from quorum.client import Message, encode_batch
from quorum.v1 import queue_pb2, queue_pb2_grpc
from support.members.users import PASSWORD, header


def batch_of(first: int, *messages: Message | bytes, **how: Any) -> queue_pb2.PublishBatch:
    data = encode_batch(list(messages)).data
    return queue_pb2.PublishBatch(first_sequence=first, lowest_unconfirmed=1, batch=data, **how)


class Stream:
    """The stream of a session."""

    def __init__(self, url: str, user: str) -> None:
        self.channel = grpc.aio.insecure_channel(url.removeprefix("quorum://"))
        self.call: Any = queue_pb2_grpc.QueueStub(self.channel).Session(
            metadata=tuple(header(user, PASSWORD).items())
        )

    async def open(self, epoch: int) -> Stream:
        hello = queue_pb2.Open(producer_id=bytes(16), epoch=epoch)
        await self.call.write(queue_pb2.SessionRequest(open=hello))
        assert (await self.call.read()).HasField("opened")
        return self

    async def publish(self, first: int, *messages: Message | bytes, **how: Any) -> dict[int, str]:
        """What each number was answered: nothing for a confirm, or the reason."""
        await self.call.write(queue_pb2.SessionRequest(publish=batch_of(first, *messages, **how)))
        return await self.answers(len(messages))

    async def answers(self, count: int) -> dict[int, str]:
        """The next answers, for so many messages."""
        found: dict[int, str] = {}
        while len(found) < count:
            confirms = (await self.call.read()).confirms
            for each in confirms.confirmed:
                found |= dict.fromkeys(range(each.first, each.last + 1), "")
            for each in confirms.rejected:
                [info] = each.status.details
                why = error_details_pb2.ErrorInfo.FromString(info.value).reason
                found |= dict.fromkeys(range(each.range.first, each.range.last + 1), why)
        return found

    async def close(self) -> None:
        self.call.cancel()
        await self.channel.close()
