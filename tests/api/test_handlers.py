"""The wrapper of handlers that yield their answers (quorum/api/grpc/handlers.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from quorum.api.grpc.handlers import streaming
from quorum.api.status import Code, StatusError, make


class Service:
    """The first run of its handler refuses an outdated queue, if it should."""

    def __init__(self, *, is_outdated: bool) -> None:
        catalog = SimpleNamespace(queue=lambda name: name, is_outdated=lambda known: True)
        self._hub = SimpleNamespace(catalog=catalog)
        self._is_outdated = is_outdated
        self.held = 0

    @streaming
    async def Count(self, request: Any, context: Any) -> AsyncGenerator[int, None]:
        if self._is_outdated:
            self._is_outdated = False
            raise StatusError(make(Code.NOT_FOUND, "not_found", "no such queue"))
        self.held += 1
        try:
            yield 1
            yield 2
        finally:
            self.held -= 1


def test_a_call_that_ends_early_gives_back_what_its_handler_holds() -> None:
    async def run() -> None:
        for is_outdated in (False, True):
            service = Service(is_outdated=is_outdated)
            answers = service.Count(SimpleNamespace(queue="orders"), None)
            assert await anext(answers) == 1 and service.held == 1
            await answers.aclose()
            assert service.held == 0

    asyncio.run(run())
