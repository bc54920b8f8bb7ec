"""The management page in a real browser, without a window: Chromium of the machine, driven by Playwright.

Where there is no Chromium (`chromium` of Debian's package), these tests are left out, and pytest says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, async_playwright, expect

import quorum
from quorum.api.http.json_api import JsonApi
from quorum.api.http.server import HttpServer
from quorum.cli.local_cluster import free_ports
from quorum.client.client import Client
from support.served_member import serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PASSWORD = "longpassword"
LIMIT_S = 200.0
WAIT_MS = 20_000
MANY = 1_000
SERIOUS = ("serious", "critical")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium: the page was not tried in a browser"
)


@dataclass
class World:
    """A member with users, its page, and a client who administers."""

    page: Page
    base: str
    client: Client
    http: HttpServer
    problems: list[str]

    async def open(self, where: str, title: str) -> None:
        """Show a view, and wait until it is there."""
        await self.page.goto(f"{self.base}/page/#/{where}")
        await expect(self.page.get_by_role("heading", level=1, name=title, exact=True)).to_be_visible()

    async def check_accessibility(self) -> None:
        """Axe finds nothing serious in the view that is shown."""
        found = await Axe().run(self.page)
        assert [each["id"] for each in found.response["violations"] if each["impact"] in SERIOUS] == []


@contextlib.asynccontextmanager
async def world(user: str = "admin", password: str = PASSWORD) -> AsyncIterator[World]:
    async with asyncio.timeout(LIMIT_S), serving() as (url, [api]):
        http = HttpServer(api.hub, "n1", JsonApi(api.hub, api.admin, api.queues))
        port = await http.start(f"127.0.0.1:{free_ports(1)[0]}")
        try:
            async with quorum.connect(url) as first:
                await first.set_user("admin", PASSWORD, administers=True)
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                credentials: Any = {"username": user, "password": password}
                page = await (await browser.new_context(http_credentials=credentials)).new_page()
                page.set_default_timeout(WAIT_MS)
                expect.set_options(timeout=WAIT_MS)
                problems: list[str] = []
                page.on("pageerror", lambda error: problems.append(str(error)))
                page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
                async with quorum.connect(url.replace("//", f"//admin:{PASSWORD}@")) as client:
                    yield World(page, f"http://127.0.0.1:{port}", client, http, problems)
                await browser.close()
        finally:
            await http.stop()


def in_browser(body: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        async with world() as found:
            await body(found)

    asyncio.run(run())


def test_without_a_log_in_there_is_no_page() -> None:
    async def run() -> None:
        async with world(password="another password") as found:
            answer = await found.page.goto(f"{found.base}/page/")
            assert answer is not None and answer.status == 401

    asyncio.run(run())


def test_the_overview_follows_the_cluster_and_tells_when_the_member_is_gone() -> None:
    async def body(found: World) -> None:
        await found.open("", "Overview")
        await expect(found.page.get_by_role("table", name="Members")).to_contain_text("n1")
        await expect(found.page.get_by_role("table", name="Raft groups")).to_contain_text("system")
        await expect(found.page.get_by_role("status")).to_have_text("Up to date.")
        assert found.problems == []
        await found.http.stop()
        await expect(found.page.get_by_role("status")).to_have_text(
            "The member does not answer; trying again."
        )

    in_browser(body)


def test_thousands_of_queues_come_in_pages() -> None:
    async def body(found: World) -> None:
        for start in range(0, MANY, 100):
            await asyncio.gather(*(found.client.declare(f"q{n:04}", {}) for n in range(start, start + 100)))
        await found.open("queues", "Queues")
        rows = found.page.get_by_role("table").get_by_role("row")
        await expect(rows).to_have_count(101)
        await found.page.get_by_role("link", name="Next page").click()
        await expect(found.page.get_by_role("link", name="q0100", exact=True)).to_be_visible()
        assert found.page.url.endswith("after=q0099")  # the URL names the view
        await found.page.get_by_label("Names that begin with").fill("q099")
        await found.page.get_by_role("button", name="Show").click()
        await expect(rows).to_have_count(11)
        assert found.problems == []

    in_browser(body)


def test_a_selector_is_tried_and_its_fault_has_a_caret() -> None:
    async def body(found: World) -> None:
        await found.client.declare("orders", {"x-filter-enabled": True})
        for colour in ("red", "blue", "red"):
            await found.client.publish("orders", colour.encode(), None, {"colour": colour})
        await found.open("queue/orders", "Queue orders")
        field = found.page.get_by_label("Selector (empty: every message)")
        await field.fill("colour = 'red'")
        await field.press("Enter")
        await expect(found.page.get_by_role("table", name="The first 2 matching messages")).to_contain_text(
            "red"
        )
        assert "selector=colour%20%3D%20'red'" in found.page.url
        assert found.problems == []
        await field.fill("colour == 'red'")
        await field.press("Enter")
        await expect(found.page.get_by_role("alert")).to_contain_text("colour")
        await expect(found.page.locator("pre")).to_have_text("colour == 'red'\n        ^")

    in_browser(body)


def test_a_queue_is_purged_only_after_a_question_that_says_what_is_lost() -> None:
    async def body(found: World) -> None:
        await found.client.declare("orders", {})
        await found.client.publish("orders", b"one")
        await found.open("queue/orders", "Queue orders")
        await found.page.get_by_role("button", name="Purge orders").click()
        dialog = found.page.get_by_role("dialog", name="Purge orders?")
        await expect(dialog).to_contain_text("waiting messages are lost (1 of them")
        await found.page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        assert [each.ready for each in await found.client.queues()] == [1]
        await found.page.get_by_role("button", name="Purge orders").click()
        await dialog.get_by_role("button", name="Purge orders").click()
        await expect(found.page.get_by_text("1 messages were removed.")).to_be_visible()
        await expect(found.page.get_by_role("row", name="ready 0")).to_be_visible()
        assert found.problems == []

    in_browser(body)


def test_the_keyboard_alone_is_enough_and_nothing_serious_bars_anybody() -> None:
    async def body(found: World) -> None:
        await found.client.declare("orders", {})
        await found.open("", "Overview")
        await found.page.keyboard.press("Tab")
        await expect(found.page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await found.page.keyboard.press("Tab")
        await found.page.keyboard.press("Tab")
        await found.page.keyboard.press("Enter")
        await expect(found.page.get_by_role("heading", level=1, name="Queues")).to_be_visible()
        for scheme in ("light", "dark"):
            await found.page.emulate_media(color_scheme=scheme)
            for where, title in VIEWS.items():
                await found.open(where, title)
                await found.check_accessibility()
        await found.page.get_by_role("button", name="Dark or light").press("Enter")
        await found.check_accessibility()
        assert found.problems == []

    in_browser(body)


VIEWS = {
    "": "Overview",
    "queues": "Queues",
    "queue/orders": "Queue orders",
    "exchanges": "Exchanges",
    "policies": "Policies",
    "users": "Users",
}


def test_a_page_of_another_site_gets_nothing() -> None:
    async def body(found: World) -> None:
        await found.client.declare("orders", {})
        await found.client.publish("orders", b"one")
        request = found.page.context.request
        other = await request.post(
            f"{found.base}/api/v1/queues/orders/purge", headers={"origin": "https://other.example"}
        )
        assert other.status == 403
        assert (await other.json())["error"]["reason"] == "OTHER_SITE"
        assert [each.ready for each in await found.client.queues()] == [1]

    in_browser(body)
