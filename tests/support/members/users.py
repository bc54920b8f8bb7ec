"""A member with users, one for each kind of permission."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine
from typing import Any

import quorum
from quorum.api.grpc.calls import MAX_CALLS
from support.members.served import serving

PASSWORD = "a long password"
LIMIT_S = 180.0
AWAY = "ipv4:192.0.2.7:41000"
HERE = "ipv4:127.0.0.1:41000"


def header(user: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def as_user(url: str, user: str, password: str = PASSWORD) -> str:
    return url.replace("quorum://", f"quorum://{user}:{password.replace(' ', '%20')}@")


def with_users(body: Callable[[str], Coroutine[Any, Any, None]], max_calls: int = MAX_CALLS) -> None:
    """Runs this with the URL of a member that has the users `admin`, who administers, `monitor`, `nobody`, and three
    with one right each for names that begin with `mine`."""

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), serving(max_calls=max_calls) as (url, _):
            async with quorum.connect(url) as client:
                await client.declare("mine", {})
                await client.declare("other", {})
                await client.set_user("admin", PASSWORD, administers=True)
            async with quorum.connect(as_user(url, "admin")) as client:
                await client.set_user("monitor", PASSWORD, monitors=True)
                for name, rights in RIGHTS.items():
                    await client.set_user(name, PASSWORD)
                    await client.set_permissions(name, *rights)
            await body(url)

    asyncio.run(scenario())


RIGHTS = {
    "nobody": ("", "", ""),
    "configurer": ("mine*", "", ""),
    "writer": ("", "mine*", ""),
    "reader": ("", "", "mine*"),
}
"""User -> patterns of configure, write and read."""
EVERYBODY = {"admin", "monitor", "nobody", "configurer", "writer", "reader"}
