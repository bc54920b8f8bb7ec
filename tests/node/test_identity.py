"""Whose data directory it is, and what a cluster stays as it began (quorum/node/identity.py)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from quorum.node.identity import FILE, Founding, IdentityError, begin_boot

FOUNDING = Founding("orders", 3, ("a", "b", "c"))


def test_boot_numbers_grow_and_never_fall_behind_the_wall_clock(tmp_path: Path) -> None:
    first = begin_boot(tmp_path, "a", FOUNDING, 5_000)
    second = begin_boot(tmp_path, "a", FOUNDING, 4_000)
    third = begin_boot(tmp_path, "a", FOUNDING, 1_000_000)
    assert first == 5_000
    assert second > first
    assert third == 1_000_000


@pytest.mark.parametrize(
    ("name", "founding", "words"),
    [
        ("b", FOUNDING, "belongs to node 'a' of cluster 'orders', this is node 'b'"),
        ("a", replace(FOUNDING, cluster="other"), "this is node 'a' of cluster 'other'"),
        ("a", replace(FOUNDING, queue_groups=5), "it cannot go on as cluster 'orders', queue_groups 5"),
        ("a", replace(FOUNDING, members=("a", "b")), "it cannot go on as .* members a, b$"),
    ],
)
def test_a_directory_is_not_taken_for_another_node_or_another_cluster(
    tmp_path: Path, name: str, founding: Founding, words: str
) -> None:
    begin_boot(tmp_path, "a", FOUNDING, 1)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(IdentityError, match=words):
        begin_boot(tmp_path, name, founding, 1)
    assert (tmp_path / FILE).read_bytes() == before


def test_every_bit_that_is_turned_over_is_noticed(tmp_path: Path) -> None:
    begin_boot(tmp_path, "a", FOUNDING, 5_000)
    good = (tmp_path / FILE).read_bytes()
    for bit in range(8 * len(good)):
        data = bytearray(good)
        data[bit >> 3] ^= 1 << (bit & 7)
        (tmp_path / FILE).write_bytes(data)
        with pytest.raises(IdentityError, match="cannot be read"):
            begin_boot(tmp_path, "a", FOUNDING, 6_000)
    (tmp_path / FILE).write_bytes(good)
    assert begin_boot(tmp_path, "a", FOUNDING, 6_000) == 6_000


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"name": "a", "boot": 1})])
def test_a_damaged_file_is_told_not_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(IdentityError, match="cannot be read"):
        begin_boot(tmp_path, "a", FOUNDING, 1)
    assert (tmp_path / FILE).read_text(encoding="utf-8") == text
