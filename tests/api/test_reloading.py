"""A reload of the configuration that meets a defect."""

from __future__ import annotations

import asyncio
from typing import Any

from structlog.testing import capture_logs

from quorum.api.security.access import Access
from quorum.api.security.reloading import Reloader, Source


def test_a_defect_in_a_reload_ends_no_member() -> None:
    """What ends the task of reloads ends the process."""

    def read() -> Any:
        raise KeyError("a library that fails in a new way")

    async def body() -> None:
        config: Any = object()  # not looked at: the new one cannot be read
        reloader = Reloader(config, Source(read, print), Access(), None, None, None)
        signalled = asyncio.Event()
        reloading = asyncio.create_task(reloader.reload_on(signalled))
        with capture_logs() as lines:
            for _ in range(2):
                signalled.set()
                while signalled.is_set():
                    await asyncio.sleep(0)
            while len(lines) < 2:
                await asyncio.sleep(0.001)
        assert not reloading.done()
        assert {line["event"] for line in lines} == {"configuration not reloaded, the old one stays"}
        reloading.cancel()

    asyncio.run(asyncio.wait_for(body(), 30))
