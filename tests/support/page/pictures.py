"""Makes the pictures of docs/http.md: `PYTHONPATH=tests python -m support.page.pictures docs/images`.

A cluster of three members in this process has a small shop's queues, with traffic, and Chromium shows the page of the
first member. The figures differ a little from run to run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from pathlib import Path

from playwright.async_api import expect

from quorum.client.client import Client
from quorum.errors import OperatorError
from support.page.world import CHROMIUM, World, browser, served_page

SIZE = {"width": 1180, "height": 760}
TRAFFIC_S, LOOK_S = 40.0, 12.0
"""Time before the first picture, and before each other one that shows rates."""
PICTURES = (
    ("overview", "", "Overview", "light"),
    ("queues", "queues", "Queues", "dark"),
    ("queue", "queue/orders.us", "Queue orders.us", "light"),
    ("dead-letters", "queue/parking", "Queue parking", "dark"),
)
"""Name, view, title and theme of each."""
QUEUES = ("invoices", "mail", "orders.eu", "orders.us", "parcels", "returns")
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "parking"}


async def seed(client: Client) -> None:
    await client.declare("parking", {})
    for number, name in enumerate(QUEUES):
        await client.declare(name, {"x-filter-enabled": True, **DEAD})
        for each in range(number * 7 % 30):
            await client.publish(name, f"parcel {each}".encode(), None, {"colour": "red"})
    for name, count in (("orders.eu", 4), ("mail", 2)):
        for _ in range(count):
            await client.publish(name, b"no such address")
        async with client.consume(name) as consumer:
            left = count
            async for message in consumer:
                await client.discard(message)
                left -= 1
                if not left:
                    break


async def traffic(client: Client) -> None:
    """Orders are published and settled until the task ends."""
    async with client.consume("orders.us", "colour = 'blue' AND total > 100", prefetch=20) as consumer:

        async def settle() -> None:
            async for message in consumer:
                await client.settle(message)

        settling = asyncio.create_task(settle())
        try:
            while True:
                for total in range(90, 120):
                    await client.publish("orders.us", b"two anvils", None, {"colour": "blue", "total": total})
                    await asyncio.sleep(0.02)
        finally:
            settling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await settling


async def picture(found: World, name: str, where: str, title: str, folder: Path) -> None:
    await found.open(where, title)
    await expect(found.page.get_by_role("status")).to_have_text("Up to date.")
    if name == "dead-letters":
        await found.page.get_by_role("button", name="Look for dead letters").click()
        await expect(found.page.get_by_role("button", name="Move all back")).to_be_visible()
        await found.page.get_by_role("heading", name="Dead letters").evaluate("each => each.scrollIntoView()")
    else:
        await asyncio.sleep(TRAFFIC_S if name == "overview" else LOOK_S)
    await found.page.screenshot(path=folder / f"page-{name}.png")


async def make(folder: Path) -> None:
    if CHROMIUM is None:
        raise OperatorError("there is no chromium on this machine; on Debian: apt-get install chromium")
    folder.mkdir(parents=True, exist_ok=True)
    async with browser() as opened, served_page(3, 3) as served:
        await seed(served.client)
        loading = asyncio.create_task(traffic(served.client))
        try:
            for name, where, title, theme in PICTURES:
                async with served.world(opened, viewport=SIZE, color_scheme=theme) as found:
                    await picture(found, name, where, title, folder)
        finally:
            loading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loading
    for path in sorted(folder.glob("page-*.png")):
        print(f"{path}  {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the PNG files go")
    asyncio.run(make(parser.parse_args().folder))
