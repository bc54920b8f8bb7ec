"""The management page in a real browser (support/page/world.py).

Where there is no Chromium (`chromium` of Debian's package), these tests are left out, and pytest says so.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator

import pytest
from playwright.async_api import Locator, Page, expect

from quorum.api.http.page_files import HEADERS
from quorum.bulk import BulkClient
from quorum.client.client import Client
from support.page.world import CHROMIUM, PASSWORD, USER, Shared, World, http_port, served_page, shared

MANY = 10_000
IMPORTED = 1_000
"""Definitions of one import, at most."""
FOREIGN = "http://foreign.example"
HOSTILE = (
    """<img src=x onerror="window.owned=1"><script>window.owned=1</script>'"` javascript:window.owned=1"""
)
LIVE = re.compile(r"[1-9]")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium: the page was not tried in a browser"
)


@pytest.fixture(scope="module")
def at() -> Iterator[Shared]:
    with shared() as found:
        yield found


async def dead_letter(client: Client, origin: str, target: str, body: bytes = b"one") -> None:
    """A message that is rejected in one queue waits in another one."""
    await client.declare(target, {})
    await client.declare(origin, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target})
    before = (await client.describe(target)).queue.ready
    await client.publish(origin, body)
    async with client.consume(origin) as consumer:
        async for message in consumer:
            await client.discard(message)
            break
    while (await client.describe(target)).queue.ready == before:
        await asyncio.sleep(0.01)


def test_without_a_log_in_there_is_no_page(at: Shared) -> None:
    async def body() -> None:
        async with at.served.world(at.browser, password="another password") as found:
            answer = await found.page.goto(f"{found.base}/page/")
            assert answer is not None and answer.status == 401

    at.run(body)


def test_the_overview_follows_the_cluster_and_tells_when_the_member_is_gone(at: Shared) -> None:
    async def body(found: World) -> None:
        usual, found.base = found.base, found.base.replace("//", f"//{USER}:{PASSWORD}@")
        await found.open("", "Overview")  # a browser refuses to fetch what is relative to such an address
        await expect(found.page.get_by_role("table", name="Members")).to_contain_text("n1")
        await expect(found.page.get_by_role("status")).to_have_text("Up to date.")
        found.base = usual
        async with http_port(found.api) as (found.base, http):
            await found.open("", "Overview")
            await expect(found.page.get_by_role("table", name="Members")).to_contain_text("n1")
            await expect(found.page.get_by_role("status")).to_have_text("Up to date.")
            assert found.problems == []
            await http.stop()
            await expect(found.page.get_by_role("status")).to_have_text(
                "The member does not answer; trying again."
            )

    at.in_browser(body)


def figure(page: Page, name: str) -> Locator:
    return page.locator(".card", has_text=name).locator(".figure")


def test_the_overview_and_a_queue_show_what_is_published_delivered_and_acknowledged(at: Shared) -> None:
    async def body(found: World) -> None:
        await found.client.declare("rated", {})
        ended = asyncio.Event()

        async def load() -> None:
            async with found.client.consume("rated") as consumer:
                while not ended.is_set():
                    await found.client.publish("rated", b"x")
                    async for message in consumer:
                        await found.client.settle(message)
                        break

        loading = asyncio.create_task(load())
        try:
            for where, title in (("", "Overview"), ("queue/rated", "Queue rated")):
                await found.open(where, title)
                for name in ("published", "delivered", "acknowledged"):
                    await expect(figure(found.page, f"{name} a second")).to_have_text(LIVE)
        finally:
            ended.set()
            await loading
        await expect(figure(found.page, "published a second")).to_have_text("0")
        assert found.problems == []

    at.in_browser(body)


def test_a_hidden_page_asks_for_nothing_and_goes_on_when_it_is_seen(at: Shared) -> None:
    async def body(found: World) -> None:
        await found.client.declare("hidden", {})
        await found.open("queue/hidden", "Queue hidden")
        await expect(found.page.get_by_role("status")).to_have_text("Up to date.")
        asked: list[str] = []
        async with found.page.expect_event("requestfailed", lambda request: "/events" in request.url):
            await found.page.evaluate(SHOW, True)
        found.page.on("request", lambda request: asked.append(request.url))
        await found.client.publish("hidden", b"one")
        assert asked == []
        await found.page.evaluate(SHOW, False)
        await expect(found.page.get_by_role("row", name="ready 1")).to_be_visible()
        assert len(asked) == 1
        await expect(found.page.get_by_role("status")).to_have_text("Up to date.")
        assert found.problems == []

    at.in_browser(body)


SHOW = """(hidden) => {
    Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_dead_letters_are_counted_and_moved_back_after_a_question(at: Shared) -> None:
    async def body(found: World) -> None:
        for _ in range(2):
            await dead_letter(found.client, "bills", "parking")
        await dead_letter(found.client, "letters", "parking")
        await found.open("queue/bills", "Queue bills")
        await expect(found.page.get_by_text("What dies here goes to the queue parking.")).to_be_visible()
        await found.open("queue/parking", "Queue parking")
        await found.page.get_by_role("button", name="Look for dead letters").click()
        letters = found.page.get_by_role("table", name="Dead letters that are ready")
        await expect(letters.get_by_role("row", name="rejected bills 2")).to_be_visible()
        await found.page.get_by_role("button", name="Move back to bills").click()
        dialog = found.page.get_by_role("dialog", name="Move back to bills?")
        await expect(dialog).to_contain_text("The dead letters of bills (2 messages a moment ago)")
        await found.check_accessibility()
        await dialog.get_by_role("button", name="Move nothing").click()
        assert (await found.client.describe("parking")).queue.ready == 3
        await found.page.get_by_role("button", name="Move back to bills").click()
        await dialog.get_by_role("button", name="Move back to bills").click()
        await expect(found.page.get_by_text("2 messages moved to bills")).to_be_visible()
        await expect(letters.get_by_role("row")).to_have_count(2)
        counts = [(await found.client.describe(name)).queue.ready for name in ("bills", "letters", "parking")]
        assert counts == [2, 0, 1]
        await found.check_accessibility()
        assert found.problems == []

    at.in_browser(body)


def test_the_user_of_a_queue_is_shown_and_how_many_queues_each_user_has(at: Shared) -> None:
    async def body(found: World) -> None:
        await found.client.declare("owned", {})
        await found.open("queue/owned", "Queue owned")
        await expect(found.page.get_by_role("main")).to_contain_text(f"; declared by {USER}")
        count = sum(each.owner == USER for each in await found.client.queues())
        await found.open("users", "Users")
        row = found.page.get_by_role("row", name=f"{USER} administers")
        await expect(row.get_by_role("cell").last).to_have_text(str(count))
        assert found.problems == []

    at.in_browser(body)


def test_the_subscriptions_of_a_queue_are_shown(at: Shared) -> None:
    async def body(found: World) -> None:
        await found.client.declare("subscribed", {"x-filter-enabled": True})
        await found.open("queue/subscribed", "Queue subscribed")
        rows = found.page.get_by_role("table", name="Durable subscriptions").get_by_role("row")
        await expect(rows.nth(1)).to_have_text("none")

        def reserve() -> None:
            with BulkClient(at.served.url) as client:
                state = client.open_subscription(
                    "subscribed", "archive", selector="colour = 'red'", timeout_ms=60_000
                )
                client.reserve("subscribed", "archive", state.generation, after=0)

        await found.client.publish("subscribed", b"one", application_properties={"colour": "red"})
        await asyncio.to_thread(reserve)
        await found.page.get_by_role("button", name="Look again").click()
        await expect(rows.nth(1)).to_have_text(re.compile("archive.*colour = 'red'.*1.*0.*1.*60 s.*released"))
        assert found.problems == []

    at.in_browser(body)


def test_a_selector_is_tried_and_its_fault_has_a_caret(at: Shared) -> None:
    async def body(found: World) -> None:
        await found.client.declare("colours", {"x-filter-enabled": True})
        for colour in ("red", "blue", "red"):
            await found.client.publish("colours", colour.encode(), None, {"colour": colour})
        await found.open("queue/colours", "Queue colours")
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

    at.in_browser(body)


def test_a_queue_is_purged_only_after_a_question_that_says_what_is_lost(at: Shared) -> None:
    async def body(found: World) -> None:
        await found.client.declare("purged", {})
        await found.client.publish("purged", b"one")
        await found.open("queue/purged", "Queue purged")
        await found.page.get_by_role("button", name="Purge purged").click()
        dialog = found.page.get_by_role("dialog", name="Purge purged?")
        await expect(dialog).to_contain_text("waiting messages are lost (1 of them")
        await found.page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        assert (await found.client.describe("purged")).queue.ready == 1
        await found.page.get_by_role("button", name="Purge purged").click()
        await dialog.get_by_role("button", name="Purge purged").click()
        await expect(found.page.get_by_text("1 messages were removed.")).to_be_visible()
        await expect(found.page.get_by_role("row", name="ready 0")).to_be_visible()
        assert found.problems == []

    at.in_browser(body)


def test_the_keyboard_alone_is_enough_and_nothing_serious_bars_anybody(at: Shared) -> None:
    async def body(found: World) -> None:
        await found.client.declare("orders", {})
        await found.open("", "Overview")
        await found.page.keyboard.press("Tab")
        await expect(found.page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await found.page.keyboard.press("Tab")
        await found.page.keyboard.press("Tab")
        await found.page.keyboard.press("Enter")
        await expect(found.page.get_by_role("heading", level=1, name="Queues")).to_be_visible()
        link = found.page.get_by_role("link", name="orders", exact=True)
        await link.focus()
        await found.client.publish("orders", b"one")
        await expect(found.page.get_by_role("row", name="orders 1 0")).to_be_visible()
        await expect(link).to_be_focused()  # what comes from the member does not move the focus
        for scheme in ("light", "dark"):
            await found.page.emulate_media(color_scheme=scheme)
            for where, title in VIEWS.items():
                await found.open(where, title)
                await found.check_accessibility()
        await found.page.get_by_role("button", name="Dark or light").press("Enter")
        await found.check_accessibility()
        assert found.problems == []

    at.in_browser(body)


VIEWS = {
    "": "Overview",
    "queues": "Queues",
    "queue/orders": "Queue orders",
    "raft": "Raft groups and members",
    "exchanges": "Exchanges",
    "policies": "Policies",
    "users": "Users",
}


# ---- hostile names and pages


def test_hostile_names_bodies_and_selectors_are_shown_as_text(at: Shared) -> None:
    async def body(found: World) -> None:
        client, page = found.client, found.page
        await client.declare(HOSTILE, {"x-filter-enabled": True})
        for _ in range(2):  # one is checked out, and one waits
            await client.publish(HOSTILE, HOSTILE.encode(), None, {"colour": HOSTILE})
        await client.declare_exchange(HOSTILE, "direct")
        await client.bind(HOSTILE, HOSTILE, HOSTILE)
        await client.set_policy(HOSTILE, "no queue", {"x-max-length": 5})
        await client.set_user(HOSTILE.replace(":", ""), "longpassword")
        await dead_letter(client, f"from {HOSTILE}", f"to {HOSTILE}", HOSTILE.encode())
        selector = "colour = '" + HOSTILE.replace("'", "''") + "'"
        async with client.consume(HOSTILE, selector, prefetch=1):
            for where, title in (("exchanges", "Exchanges"), ("policies", "Policies"), ("users", "Users")):
                await found.open(where, title)
                await expect(page.get_by_role("main")).to_contain_text("<script>window.owned=1</script>")
                await nothing_lives(page)
            await found.open("queues?prefix=%3Cimg", "Queues")
            await page.get_by_role("link", name=HOSTILE, exact=True).click()
            await expect(page.get_by_role("heading", level=1, name=f"Queue {HOSTILE}")).to_be_visible()
            await expect(page.get_by_role("table", name="Consumers")).to_contain_text("onerror=")
            await page.get_by_label("Selector (empty: every message)").fill(selector)
            await page.get_by_role("button", name="Browse").click()
            await expect(page.get_by_role("table", name="The first")).to_contain_text("<script>")
            await nothing_lives(page)
            await page.get_by_role("button", name="Purge").click()
            await expect(page.get_by_role("dialog")).to_contain_text("<script>")
            await nothing_lives(page)
            await page.keyboard.press("Escape")
        await found.open("queues?prefix=to", "Queues")
        await page.get_by_role("link", name=f"to {HOSTILE}", exact=True).click()
        await page.get_by_role("button", name="Look for dead letters").click()
        await page.get_by_role("button", name="Move back to from <img").click()
        await nothing_lives(page)
        await page.keyboard.press("Escape")
        for where in (f"no such view {HOSTILE}", "__proto__", "constructor", "queue/%"):
            await page.goto(f"{found.base}/page/#/{where}")
            await expect(page.get_by_role("heading", level=1, name="Not shown")).to_be_visible()
            await nothing_lives(page)
        # The last line of defence: even a script that got into the page would not run.
        assert found.problems == []
        await page.evaluate(
            "() => { const made = document.createElement('script'); made.textContent = 'window.owned = 1';"
            " document.body.append(made); document.body.insertAdjacentHTML('beforeend',"
            " '<img src=x onerror=window.owned=1>'); made.remove(); }"
        )
        await expect(page.locator("img")).to_have_count(1)
        assert await page.evaluate("() => window.owned") is None
        assert any("Content Security Policy" in each for each in found.problems)

    at.in_browser(body)


async def nothing_lives(page: Page) -> None:
    """No name has become a part of the page that does something."""
    assert await page.evaluate("() => window.owned") is None
    assert (
        await page.locator("script").count() == 1 and await page.locator("main img, dialog img").count() == 0
    )
    links = await page.locator("a").evaluate_all("all => all.map((each) => each.getAttribute('href'))")
    assert [each for each in links if not (each is None or each.startswith("#"))] == []
    handlers = (
        "all => all.filter((each) => each.getAttributeNames().some((name) => name.startsWith('on'))).length"
    )
    assert await page.locator("*").evaluate_all(handlers) == 0


def test_every_file_of_the_page_forbids_scripts_of_others_and_frames(at: Shared) -> None:
    async def body(found: World) -> None:
        for name in ("", "page.js", "page.css"):
            answer = await found.page.context.request.get(f"{found.base}/page/{name}")
            assert answer.status == 200
            for key, value in HEADERS.items():
                assert answer.headers[key] == value
        policy = dict(each.strip().split(" ", 1) for each in HEADERS["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"

    at.in_browser(body)


@contextlib.asynccontextmanager
async def foreign_site(body: str) -> AsyncIterator[str]:
    """A page of another site; its URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        data = f"<!doctype html>{body}".encode()
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(data)}\r\nConnection: close"
        )
        writer.write(f"{head}\r\n\r\n".encode() + data)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://localhost:{server.sockets[0].getsockname()[1]}/"


def test_a_page_of_another_site_changes_nothing_reads_nothing_and_frames_nothing(at: Shared) -> None:
    """Also in a browser that adds the log-in to every request."""
    log_in = {"authorization": "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}

    async def body() -> None:
        async with at.served.world(at.browser, extra_http_headers=log_in) as found:
            await found.client.declare("guarded", {})
            await found.client.publish("guarded", b"one")
            purge = f"{found.base}/api/v1/queues/guarded/purge"
            form = f'<form method="post" action="{purge}" enctype="text/plain"><input name="{{}}"><button>go</button>'
            async with foreign_site(f'{form}</form><iframe src="{found.base}/page/"></iframe>') as url:
                async with found.page.expect_event("requestfailed", lambda each: each.url.endswith("/page/")):
                    await found.page.goto(url)
                await expect(found.page.frame_locator("iframe").locator("main, header")).to_have_count(0)
                assert any("frame-ancestors" in each for each in found.problems)
                assert await found.page.evaluate(FORGED, [found.base, purge]) == ["opaque", *["refused"] * 3]
                await found.page.get_by_role("button", name="go").click()
                await expect(found.page.locator("body")).to_contain_text("OTHER_SITE")
            assert (await found.client.describe("guarded")).queue.ready == 1

    at.run(body)


FORGED = """async ([base, purge]) => {
    const json = { "content-type": "application/json" };
    const tries = [
        [purge, { method: "POST", mode: "no-cors", body: "{}" }],
        [purge, { method: "POST", body: "{}", headers: json }],
        [purge.replace("/purge", ""), { method: "DELETE" }],
        [base + "/api/v1/cluster", {}],
    ];
    const found = [];
    for (const [path, options] of tries) {
        try {
            const answer = await fetch(path, { ...options, credentials: "include" });
            found.push(answer.type);
        } catch {
            found.push("refused");
        }
    }
    return found;
}"""
"""Requests of a page of another site; what its script sees of each answer."""


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": FOREIGN, "content-type": "application/json"},
        {"origin": "null", "content-type": "application/json"},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=application/json"},
        {"content-type": ""},
    ],
    ids=str,
)
def test_a_post_needs_what_a_page_of_another_site_cannot_send(at: Shared, headers: dict[str, str]) -> None:
    async def body(found: World) -> None:
        await found.client.declare("guarded", {})
        answer = await found.page.context.request.post(
            f"{found.base}/api/v1/queues/guarded/purge", headers=headers, data=b"{}"
        )
        assert answer.status == 403
        assert json.loads(await answer.text())["error"]["reason"] == "OTHER_SITE"

    at.in_browser(body)


# ---- large, and with faults


def test_a_killed_member_is_told_and_so_is_its_return(at: Shared) -> None:
    async def body() -> None:
        async with served_page(size=3) as served, served.world(at.browser) as found:
            cluster = found.api.cluster
            await found.client.declare("orders", {})
            await found.open("raft", "Raft groups and members")
            status = found.page.get_by_role("status")
            await expect(status).to_have_text("Up to date.")
            leader = cluster.leader(0)
            killed = leader if leader is not None and leader != "n1" else "n3"
            group = next(each.group for each in found.api.hub.catalog.queues() if each.name == "orders")
            await found.client.transfer_leadership(group, "n1")
            progress = found.page.get_by_role("table", name="Raft groups").get_by_role("row").nth(group + 1)
            await expect(progress).to_contain_text(f"{killed} 0")
            cluster.crash(killed)
            await expect(status).to_have_text(f"Not reachable: {killed}.")
            row = found.page.get_by_role("table", name="Members").get_by_role("row", name=killed)
            await expect(row).to_contain_text("not reachable")
            await found.open("queue/orders", "Queue orders")
            await found.client.publish("orders", b"one")
            await expect(found.page.get_by_role("row", name="ready 1")).to_be_visible()
            await expect(status).to_have_text(f"Not reachable: {killed}.")
            await found.open("raft", "Raft groups and members")
            await expect(progress).to_contain_text(re.compile(rf"{killed} [1-9]"))
            metrics = await (await found.page.context.request.get(f"{found.base}/metrics")).text()
            name = f'quorum_group_behind_entries{{group="{group}",member="{killed}"}}'
            assert re.search(rf"^{re.escape(name)} [1-9]", metrics, re.MULTILINE), metrics
            seen = (await found.client.cluster_status()).groups[group]
            [lagging] = [each for each in seen.progress if each.name == killed]
            assert 0 < lagging.match_index < seen.last_index and len(seen.progress) == 2
            cluster.start(killed)
            await expect(status).to_have_text("Up to date.")
            await expect(progress).to_contain_text(f"{killed} 0")
            assert found.problems == []

    at.run(body)


def test_without_a_majority_the_page_says_that_figures_are_old(at: Shared) -> None:
    async def body() -> None:
        async with served_page(size=3) as served, served.world(at.browser) as found:
            cluster = found.api.cluster
            await found.client.declare("orders", {})
            await found.open("queue/orders", "Queue orders")
            status = found.page.get_by_role("status")
            await expect(status).to_have_text("Up to date.")
            for name in ("n2", "n3"):
                cluster.crash(name)
            await expect(status).to_have_text(
                re.compile("Figures of queues are not up to date.*Not reachable: n2, n3")
            )
            for name in ("n2", "n3"):
                cluster.start(name)
            await expect(status).to_have_text("Up to date.")

    at.run(body)


def test_ten_thousand_queues_come_in_pages(at: Shared) -> None:
    async def body(found: World) -> None:
        for start in range(0, MANY, IMPORTED):
            queues = [{"name": f"q{n:05}", "arguments": {}} for n in range(start, start + IMPORTED)]
            answer = await found.page.context.request.post(
                f"{found.base}/api/v1/definitions", data={"definitions": {"queues": queues}}
            )
            assert answer.status == 200, await answer.text()
        await found.open("queues?prefix=q", "Queues")
        rows = found.page.get_by_role("table").get_by_role("row")
        await expect(rows).to_have_count(51)
        await found.page.get_by_role("link", name="Next page").click()
        await expect(found.page.get_by_role("link", name="q00050", exact=True)).to_be_visible()
        assert found.page.url.endswith("after=q00049")  # the URL names the view
        await found.client.publish("q00050", b"one")
        await expect(
            found.page.get_by_role("row", name="q00050 1 0")
        ).to_be_visible()  # it follows what changes
        await found.page.get_by_label("Names that begin with").fill("q0999")
        await found.page.get_by_role("button", name="Show").click()
        await expect(rows).to_have_count(11)
        await expect(found.page.get_by_role("link", name="Next page")).to_be_hidden()
        await found.open("", "Overview")
        await expect(figure(found.page, "queues")).to_have_text(re.compile(r"10,0\d\d"))
        assert found.problems == []

    at.in_browser(body)
