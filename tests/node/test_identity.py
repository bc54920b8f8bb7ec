"""Whose data directory it is, and what a cluster stays as it began (quorum/node/identity/identity.py)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from quorum.api.process import run
from quorum.catalog.members import CatalogMember
from quorum.config import load
from quorum.errors import ConfigError
from quorum.log.files import RealFiles
from quorum.node.identity.identity import FILE, Founding, IdentityError, record_start
from quorum.node.identity.log_owner import OWNER, check_owner, claim_log, read_owner

FOUNDING = Founding("orders", 3, ("a", "b", "c"))


def test_boot_numbers_grow_and_never_fall_behind_the_wall_clock(tmp_path: Path) -> None:
    first = record_start(tmp_path, "a", FOUNDING, 5_000).boot
    second = record_start(tmp_path, "a", FOUNDING, 4_000).boot
    third = record_start(tmp_path, "a", FOUNDING, 1_000_000).boot
    assert first == 5_000
    assert second > first
    assert third == 1_000_000


@pytest.mark.parametrize(
    ("name", "founding", "words"),
    [
        ("b", FOUNDING, "belongs to node 'a' of cluster 'orders', this is node 'b'"),
        (
            "a",
            replace(FOUNDING, cluster="other"),
            "this is node 'a' of cluster 'other'. If it is the same member, correct cluster in its configuration; "
            "only a different member needs a directory of its own$",
        ),
        ("b", FOUNDING, "If it is the same member, correct name in"),
        ("b", replace(FOUNDING, cluster="other"), "If it is the same member, correct name and cluster in"),
        ("a", replace(FOUNDING, queue_groups=5), "it cannot continue as cluster 'orders', queue_groups 5"),
        ("a", replace(FOUNDING, members=("a", "b")), "it cannot continue as .* members a, b$"),
    ],
)
def test_a_directory_is_not_taken_for_another_node_or_another_cluster(
    tmp_path: Path, name: str, founding: Founding, words: str
) -> None:
    record_start(tmp_path, "a", FOUNDING, 1)
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(IdentityError, match=words):
        record_start(tmp_path, name, founding, 1)
    assert (tmp_path / FILE).read_bytes() == before


def test_a_member_does_not_start_on_the_log_of_another_data_directory(tmp_path: Path) -> None:
    """It has forgotten its votes and what it has acknowledged: confirmed messages would be lost."""
    files, logs = RealFiles(), {}
    for name in "ab":
        logs[name] = tmp_path / name / "log"
        logs[name].mkdir(parents=True)
        start = record_start(tmp_path / name, name, FOUNDING, 1)
        claim_log(logs[name], start.node_state.incarnation, files)
    check_owner(tmp_path / "a", logs["a"], files)
    (logs["a"] / OWNER).write_bytes((logs["b"] / OWNER).read_bytes())
    secret = tmp_path / "secret"
    secret.write_text("x" * 32, encoding="ascii")
    secret.chmod(0o400)
    members = {
        name: {"peer": f"127.0.0.{at}:1", "client": f"127.0.0.{at}:2"} for at, name in enumerate("abc", 1)
    }
    flags = {"name": "a", "cluster": "orders", "members": members, "secret_file": secret}
    with pytest.raises(
        ConfigError, match=r"log is from another data directory than .*: what 'a' has voted for"
    ):
        run(load(None, flags | {"data_dir": tmp_path / "a"}))


def test_a_log_without_an_owner_gets_one(tmp_path: Path) -> None:
    """Also if one bit of the file is wrong: nothing speaks against this member then."""
    files = RealFiles()
    start = record_start(tmp_path, "a", FOUNDING, 1)
    log, incarnation = tmp_path / "log", start.node_state.incarnation
    log.mkdir()
    assert read_owner(log, files) is None
    claim_log(log, incarnation, files)
    good = (log / OWNER).read_bytes()
    for bit in range(8 * len(good)):
        data = bytearray(good)
        data[bit >> 3] ^= 1 << (bit & 7)
        (log / OWNER).write_bytes(data)
        check_owner(tmp_path, log, files)
        claim_log(log, incarnation, files)
        assert read_owner(log, files) == incarnation


def test_every_bit_that_is_turned_over_is_noticed(tmp_path: Path) -> None:
    record_start(tmp_path, "a", FOUNDING, 5_000)
    good = (tmp_path / FILE).read_bytes()
    for bit in range(8 * len(good)):
        data = bytearray(good)
        data[bit >> 3] ^= 1 << (bit & 7)
        (tmp_path / FILE).write_bytes(data)
        with pytest.raises(IdentityError, match="cannot be read"):
            record_start(tmp_path, "a", FOUNDING, 6_000)
    (tmp_path / FILE).write_bytes(good)
    assert record_start(tmp_path, "a", FOUNDING, 6_000).boot == 6_000


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"name": "a", "boot": 1})])
def test_a_damaged_file_is_told_not_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(IdentityError, match="cannot be read"):
        record_start(tmp_path, "a", FOUNDING, 1)
    assert (tmp_path / FILE).read_text(encoding="utf-8") == text


def test_an_incarnation_belongs_to_the_directory_and_outlives_the_process(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    first = record_start(one, "a", FOUNDING, 1).node_state
    first.known_incarnations["b"] = "22"
    first.is_established = True
    first.members = (CatalogMember(1, "a", "a", "h:1", "h:2"),)
    first.save()
    again = record_start(one, "a", FOUNDING, 1).node_state
    assert (again.incarnation, again.known_incarnations, again.is_established, again.members) == (
        first.incarnation,
        {"b": "22"},
        True,
        first.members,
    )
    assert record_start(other, "a", FOUNDING, 1).node_state.incarnation != first.incarnation


def test_a_founding_member_is_established_by_the_others_and_a_lone_one_by_itself(tmp_path: Path) -> None:
    lone = tmp_path / "lone"
    lone.mkdir()
    assert not record_start(tmp_path, "a", FOUNDING, 1).node_state.is_established
    assert record_start(lone, "a", replace(FOUNDING, members=("a",)), 1).node_state.is_established


def test_who_joins_has_an_id_of_its_directory(tmp_path: Path) -> None:
    start = record_start(tmp_path, "d", replace(FOUNDING, members=()), 1)
    assert start.id == f"d~{start.node_state.incarnation[:12]}"
    assert start.node_state.is_established
    with pytest.raises(IdentityError, match=r"began as .* joining; it cannot continue as"):
        record_start(tmp_path, "d", FOUNDING, 1)
