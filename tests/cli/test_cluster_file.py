"""What cluster.json may hold; a person may have edited it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorum.errors import ClusterError
from quorum.local_cluster.cluster import LocalCluster
from quorum.local_cluster.cluster_file import read_cluster_file

GOOD = {"client": "127.0.0.1:1", "peer": "127.0.0.1:2"}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ([], "the file is an array; wanted: an object"),
        ({}, "members is missing; wanted: an object"),
        ({"members": {}}, "members names no member"),
        ({"members": ["a"]}, "members is an array; wanted: an object"),
        ({"members": {"a": 5}}, "member a is a number; wanted: an object"),
        ({"members": {"a": {"peer": "127.0.0.1:2"}}}, "client of member a is missing; wanted: host:port"),
        ({"members": {"a": GOOD | {"client": 5}}}, "client of member a is a number; wanted: host:port"),
        (
            {"members": {"a": GOOD | {"peer": "x"}}},
            "peer of member a: 'x' is not an address; wanted: host:port",
        ),
        ({"members": {"a": GOOD | {"http": None}}}, "http of member a is missing; wanted: host:port"),
        ({"members": {"../../x": GOOD}}, "'../../x' is not a name; allowed: 1..64"),
        ({"members": {"": GOOD}}, "'' is not a name; allowed: 1..64"),
        ({"members": {"a": GOOD}, "settings": 5}, "settings is a number; wanted: an object"),
        (
            {"members": {"a": GOOD}, "settings": {"k": []}},
            "setting k is an array; wanted: a text or an integer",
        ),
        ({"members": {"a": GOOD}, "settings": {"k": True}}, "setting k is a boolean; wanted: a text or"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_what_is_allowed(
    tmp_path: Path, state: object, words: str
) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps(state), encoding="utf-8")
    with pytest.raises(ClusterError) as refused:
        LocalCluster.open(tmp_path)
    assert f"cluster.json cannot be read: {words}" in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\xff"])
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ClusterError, match="cannot be read"):
        read_cluster_file(tmp_path / "cluster.json")


def test_what_a_cluster_writes_is_read(tmp_path: Path) -> None:
    made = LocalCluster(tmp_path / "c", 2, settings={"lease_ms": 1500, "log_level": "info"})
    found = read_cluster_file(tmp_path / "c" / "cluster.json")
    assert [(name, each.client, each.peer) for name, each in found.members.items()] == [
        (each.name, each.client, each.peer) for each in made.members
    ]
    assert found.settings == {"lease_ms": 1500, "log_level": "info"}
