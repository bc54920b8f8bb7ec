"""Statuses on gRPC's wire: the one place where they become google.rpc.Status.

Each carries a google.rpc.ErrorInfo: `reason` is a word for programs, the message is for people.
"""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from quorum.api.status import Status, StatusError

DOMAIN = "quorum"


def to_proto(status: Status) -> status_pb2.Status:
    info = error_details_pb2.ErrorInfo(
        reason=status.reason.upper(), domain=DOMAIN, metadata=dict(status.metadata)
    )
    detail = any_pb2.Any()
    detail.Pack(info, deterministic=True)
    return status_pb2.Status(code=status.code, message=status.message, details=[detail])


async def abort(context: grpc.aio.ServicerContext, error: StatusError) -> None:
    await context.abort_with_status(rpc_status.to_status(to_proto(error.status)))
