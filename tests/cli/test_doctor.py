"""`quorum doctor` on this machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from quorum.cli import doctor

CONFIG = """
name = "a"
data_dir = "{folder}/data"
secret_file = "{folder}/secret"
[members.a]
peer = "127.0.0.1:7401"
client = "127.0.0.1:7400"
[members.b]
peer = "127.0.0.1:{port}"
client = "127.0.0.1:2"
"""


def by_name(file: Path | None) -> dict[str, doctor.Finding]:
    return {each.what: each for each in doctor.findings(file)}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    secret.chmod(0o400)
    file = tmp_path / "node.toml"
    file.write_text(CONFIG.format(folder=tmp_path, port=1))
    return file


def test_a_sound_machine_is_told_so(config: Path) -> None:
    found = by_name(config)
    assert {found[name].level for name in ("system", "packages", "configuration", "free space")} == {"ok"}
    assert "ms" in found["disk"].text
    assert found["b, for members"].level == "warn", "it may not run yet"
    assert not any(name.startswith("a,") for name in found)


def test_a_member_that_answers_is_told_so(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        config.write_text(CONFIG.format(folder=config.parent, port=port))
        assert by_name(config)["b, for members"].level == "ok"


def test_a_secret_that_others_can_read_is_bad(config: Path) -> None:
    (config.parent / "secret").chmod(0o444)
    found = by_name(config)
    assert found["configuration"].level == "bad"
    assert "disk" not in found


def test_a_disk_that_forgets_or_is_far_is_bad(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("tmpfs", "nfs4"):
        monkeypatch.setattr(doctor, "_file_system", lambda folder, kind=kind: kind)
        assert by_name(config)["file system"].level == "bad"


def test_a_slow_disk_and_a_missing_package_are_told(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_sync_times_ms", lambda folder: [1.0] * 50 + [80.0] * 50)
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["no-such-package>=1; extra == 'server'"])
    found = by_name(config)
    assert (found["disk"].level, found["packages"].level) == ("warn", "bad")
    assert "no-such-package is missing" in found["packages"].text
