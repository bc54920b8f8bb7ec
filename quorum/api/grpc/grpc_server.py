"""The server of gRPC that a member uses: grpcio's own, except for calls of methods that it does not have.

grpcio ends its whole server if the name of such a method is not UTF-8 (1.85.3: `_server_main_loop`). Anybody who
reaches the port could stop a member from serving with one frame. All methods of a member are registered by name
(`Gate`), so only calls of unknown methods come to `_request_call`. They are answered here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server as aio_server

Option = tuple[str, int | str]


class _Core(cygrpc.AioServer):  # type: ignore[misc,unused-ignore]
    async def _request_call(self) -> Any:
        """Answers all calls of unknown methods. Ends, with grpcio's own exception, when the server stops."""
        answers: set[asyncio.Task[None]] = set()
        while True:
            state = await super()._request_call()
            task = asyncio.create_task(_refuse(state))
            answers.add(task)
            task.add_done_callback(answers.discard)


async def _refuse(state: Any) -> None:
    context = cygrpc._ServicerContext(state, None, None, asyncio.get_running_loop())
    # The first two: how grpcio ends a call, and a call that its client has ended.
    with contextlib.suppress(grpc.aio.AbortError, asyncio.CancelledError, cygrpc.ExecuteBatchError):
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such method")


class GrpcServer(aio_server.Server):  # type: ignore[misc,unused-ignore]
    """As `grpc.aio.server(options=options)`. Every method has to be registered by name."""

    def __init__(self, options: Sequence[Option] = ()) -> None:
        self._loop = cygrpc.get_working_loop()
        self._server = _Core(self._loop, None, (), None, tuple(options), None)
