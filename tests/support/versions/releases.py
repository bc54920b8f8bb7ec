"""Releases of this software as wheels, and a cluster whose members run different ones.

The wheels are built from the history of this repository, and from its present files. They are installed into folders
of their own, without their dependencies: the members get those from the environment of the tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from quorum.local_cluster.cluster import LocalCluster
from quorum.local_cluster.member import LocalMember
from quorum.local_cluster.processes import LineSink, MemberProcess
from support.repository import ROOT

RELEASE_0_1_0 = "4e9d24e5a901aa8b2cb533d5ae350d0f5f98108e"
"""The last commit of release 0.1.0. It has machine version 1, the oldest one whose data every release reads. Later
commits have machine version 2, which changed until it was released with 0.2.0: they promise nothing to each other."""
BEFORE_0_2_0 = "dbfd501877c609261eb8847d769f6ca2e12e8a6b"
"""A commit days before release 0.2.0. What the tests' load does has not changed between them."""
RELEASE_0_2_0 = "edc6d4a4d05615f9cbc1d205417de356de9a02ba"
"""The commit that fixed machine version 2 and wire version 1. Its members and later ones work together."""
MACHINE_OF_0_2_0 = 2
PARTS = ("pyproject.toml", "README.md", "LICENSE", "quorum", "fifo", "selectors", "spark")
"""What the build of a wheel reads."""
VERSIONS = Path("fifo") / "versions.py"


def is_in_history(commit: str) -> bool:
    """Whether the history of this repository has the commit. A source archive has no history."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return False
    found = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    return found.returncode == 0


def source_of(commit: str, folder: Path) -> Path:
    """Write the files of a commit to a new folder, and return it."""
    folder.mkdir()
    archive = folder.with_suffix(".tar")
    _run("git", "archive", "-o", archive, commit, *PARTS, cwd=ROOT)
    shutil.unpack_archive(archive, folder, filter="data")
    return folder


def installed(source: Path, folder: Path) -> Path:
    """Build the wheel of the source, install it into a new folder, and return this folder."""
    folder.mkdir()
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    [wheel] = folder.glob("*.whl")
    target = folder / "installed"
    _run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-index", "--no-compile", "--target", target, wheel),
        cwd=folder,
    )
    return target


def with_a_newer_machine(release: Path, folder: Path, current: int) -> Path:
    """Copy an installed release into a new folder, as a release that knows one machine version more."""
    shutil.copytree(release, folder)
    file = folder / VERSIONS
    text = file.read_text(encoding="utf-8")
    assert text.count(f"\nCURRENT = {current}\n") == 1
    file.write_text(
        text.replace(f"\nCURRENT = {current}\n", f"\nCURRENT = {current + 1}\n"), encoding="utf-8"
    )
    return folder


def _run(*command: str | Path, cwd: Path) -> None:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"


class ReleasesCluster(LocalCluster):
    """Members that run installed releases. release: of all members, until `releases` has another one for a member."""

    def __init__(self, directory: Path, release: Path) -> None:
        super().__init__(directory, launch=self._start_release)
        self.releases = dict.fromkeys(self.names, release)

    def _start_release(self, member: LocalMember, sink: LineSink | None) -> MemberProcess:
        # -P: the folder in which the tests run holds a `quorum`, too.
        program = ("-P", "-m", "quorum", "node")
        variables = {"PYTHONPATH": str(self.releases[member.name])}
        return MemberProcess(member.name, member.config, member.output, sink, program, variables)

    def change(self, name: str, release: Path) -> None:
        """Stop the member, and start it with this release. Wait until it serves."""
        self.releases[name] = release
        self.restart(name)
