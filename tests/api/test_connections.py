"""Connections to the client port (quorum/api/connections.py)."""

from __future__ import annotations

import socket
from collections import Counter

import pytest

from quorum.api import connections
from quorum.api.connections import Connection, close_excess, excess


def held(network: str, *received: int) -> list[Connection]:
    return [Connection(number, number, network, count) for number, count in enumerate(received)]


def test_nothing_is_closed_while_there_is_room() -> None:
    assert excess(held("a", *range(50)), 100) == []
    assert excess([*held("a", *range(30)), *held("b", *range(30))], 100) == []


def test_an_address_with_more_than_are_free_has_those_closed_that_brought_least() -> None:
    closed = excess([*held("a", *range(90)), *held("b", 0, 0, 0)], 100)
    left = 93 - len(closed)
    assert {each.network for each in closed} == {"a"}
    assert sorted(each.received for each in closed) == list(range(len(closed)))
    assert 90 - len(closed) <= 100 - left


def test_all_addresses_find_room_after_a_flood_of_many() -> None:
    flood = [each for name in "abcd" for each in held(name, *[0] * 24)]
    closed = Counter(each.network for each in excess([*flood, *held("honest", 5)], 100))
    assert closed["honest"] == 0
    assert 97 - closed.total() < 90


def test_real_sockets_are_found_and_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        clients, accepted = [], []
        try:
            for _ in range(8):
                clients.append(socket.create_connection(("127.0.0.1", port)))
                accepted.append(listener.accept()[0])
            clients[2].sendall(b"an honest client")
            assert accepted[2].recv(100) == b"an honest client"
            assert close_excess(port, 1_000_000) == 0
            assert close_excess(port + 1, 10) == 0
            assert close_excess(port, 10) == 3
            ended = [number for number, each in enumerate(clients) if is_ended(each)]
            assert len(ended) == 3
            assert 2 not in ended
        finally:
            for each in (*clients, *accepted):
                each.close()


def is_ended(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


def test_the_limit_leaves_most_descriptors_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, most in ((400, 100), (65_536, 16_384), (1 << 20, 32_768), (-1, 32_768)):
        monkeypatch.setattr(connections.resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert connections.max_connections() == most
