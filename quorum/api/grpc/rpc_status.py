"""Conversion of statuses to google.rpc.Status, the form on gRPC's wire. No other module does it.

Each has a google.rpc.ErrorInfo with the reason in upper case and the metadata. Programs read the reason; people read
the message.
"""

from __future__ import annotations

import asyncio

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
    """End the call with this status. CancelledError if the client has left before it was sent."""
    try:
        await context.abort_with_status(rpc_status.to_status(to_proto(error.status)))
    except grpc.aio.InternalError as failed:
        raise asyncio.CancelledError from failed
