"""A member with its management page, and a real browser without a window: Chromium of the machine, with Playwright."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright, expect

import quorum
from quorum.api.http.json_api import JsonApi
from quorum.api.http.server import HttpServer
from quorum.client.client import Client
from quorum.local_cluster.ports import free_ports
from support.members.served import serving
from support.members.services import Api

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
USER, PASSWORD = "admin", "longpassword"
LIMIT_S = 300.0
WAIT_MS = 90_000
SERIOUS = ("serious", "critical")


@dataclass
class World:
    """A member with users, a browser at its page, and a client who administers."""

    page: Page
    base: str
    client: Client
    api: Api
    problems: list[str]

    async def open(self, where: str, title: str) -> None:
        """Show a view, and wait until it is there."""
        await self.page.goto(f"{self.base}/page/#/{where}")
        await expect(self.page.get_by_role("heading", level=1, name=title, exact=True)).to_be_visible()

    async def check_accessibility(self) -> None:
        """Axe finds nothing serious in the view that is shown."""
        found = await Axe().run(self.page)
        assert [each["id"] for each in found.response["violations"] if each["impact"] in SERIOUS] == []


@dataclass
class Served:
    """url: of the administrator, for clients."""

    base: str
    url: str
    client: Client
    api: Api

    @contextlib.asynccontextmanager
    async def world(self, browser: Browser, password: str = PASSWORD, **context: Any) -> AsyncIterator[World]:
        """A new page in a browser that has seen nothing."""
        credentials: Any = {"username": USER, "password": password}
        opened = await browser.new_context(http_credentials=credentials, **context)
        page = await opened.new_page()
        page.set_default_timeout(WAIT_MS)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
        try:
            yield World(page, self.base, self.client, self.api, problems)
        finally:
            await opened.close()


@contextlib.asynccontextmanager
async def http_port(api: Api) -> AsyncIterator[tuple[str, HttpServer]]:
    server = HttpServer(api.hub, JsonApi(api.hub, api.admin, api.queues, api.bulk))
    port = await server.start(f"127.0.0.1:{free_ports(1)[0]}")
    try:
        yield f"http://127.0.0.1:{port}", server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def served_page(size: int = 1, members: int = 1) -> AsyncIterator[Served]:
    """The page of the first member of a cluster with an administrator. members: how many serve clients."""
    async with serving(size, members) as (url, [api, *_]), http_port(api) as (base, _):
        async with quorum.connect(url) as first:
            await first.set_user(USER, PASSWORD, administers=True)
        own = url.replace("//", f"//{USER}:{PASSWORD}@")
        async with quorum.connect(own) as client:
            yield Served(base, own, client, api)


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    expect.set_options(timeout=WAIT_MS)
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=WAIT_MS
        )
        try:
            yield found
        finally:
            await found.close()


class Shared:
    """One browser, and one member, for all tests of a file. Time goes on while a body runs."""

    def __init__(self, runner: asyncio.Runner, browser: Browser, served: Served) -> None:
        self._runner = runner
        self.browser = browser
        self.served = served

    def run(self, body: Callable[[], Awaitable[None]]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(LIMIT_S):
                await body()

        self._runner.run(limited())

    def in_browser(self, body: Callable[[World], Awaitable[None]]) -> None:
        """Run a test in a page of its own. The browser has reported no error if it passes."""

        async def one() -> None:
            async with self.served.world(self.browser) as found:
                await body(found)

        self.run(one)


@contextlib.contextmanager
def shared() -> Iterator[Shared]:
    stack = contextlib.AsyncExitStack()
    with asyncio.Runner() as runner:

        async def begin() -> Shared:
            opened = await stack.enter_async_context(browser())
            return Shared(runner, opened, await stack.enter_async_context(served_page()))

        try:
            yield runner.run(begin())
        finally:
            runner.run(stack.aclose())
