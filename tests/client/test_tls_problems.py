"""Where a client looks for what is wrong about TLS (quorum/client/connection/tls.py). What it finds is in
tests/api/test_client_tls.py."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quorum.client.connection.endpoints import Service
from quorum.client.connection.tls import problem


@pytest.mark.parametrize("is_secure", [False, True])
def test_the_look_at_an_address_of_ipv6_goes_there(monkeypatch: pytest.MonkeyPatch, is_secure: bool) -> None:
    called: list[tuple[str, int]] = []

    async def refused(host: str, port: int, **_: Any) -> None:
        called.append((host, port))
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", refused)
    service = Service(("[fd00::7]:7400",), is_secure=is_secure)
    assert asyncio.run(problem(service, "[fd00::7]:7400")) == ("", False)
    assert called == [("fd00::7", 7400)]
