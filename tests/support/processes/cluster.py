"""Clusters of real member processes on disks with faults and behind proxies that can be cut; and what only tests ask
of members.

Members differ in what must not matter: the seed of Python's hashes, time zone, locale.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quorum.errors import ClusterError
from quorum.local_cluster.cluster import LocalCluster
from quorum.local_cluster.member import LocalMember
from quorum.local_cluster.member_processes import STOP_GRACE_S
from quorum.local_cluster.processes import LineSink, MemberProcess
from support.log.faulty_files import Faults
from support.processes.member import CUT_STATUS, FAULTS_FILE, SETUP_FILE
from support.processes.proxy import Proxies
from support.repository import ROOT

CUT_LIMIT_S = 30.0
"""A power cut puts sectors back and ends the process."""
EQUAL_LIMIT_S = 60.0
"""Members have applied as much as the others, and nothing is on its way, by then."""
END_LIMIT_S = 60.0
POLL_S = 0.05

UNLIKE = (
    {"PYTHONHASHSEED": "1", "TZ": "Asia/Kathmandu", "LC_ALL": "C"},
    {"PYTHONHASHSEED": "4294967295", "TZ": "America/St_Johns", "LC_ALL": "C.UTF-8"},
    {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "tr_TR.UTF-8", "PYTHONUTF8": "1"},
)


@dataclass(frozen=True, slots=True)
class PowerCutSaid:
    """What a member's disk forgot."""

    sectors: int
    kept: int
    names: int


class FaultyCluster(LocalCluster):
    """seed: of the power cuts. with_proxies: members reach each other through proxies that can be cut."""

    def __init__(
        self,
        directory: Path,
        members: int = 3,
        *,
        seed: int = 1,
        with_proxies: bool = False,
        settings: Mapping[str, str | int] | None = None,
        segment_bytes: int | None = None,
        snapshot_bytes: int | None = None,
        pace: Mapping[str, int] | None = None,
        secured: bool = False,
    ) -> None:
        """pace: of scrubbing (quorum/node/maintenance/scrubbing.py). secured: as LocalCluster."""
        self.chance = random.Random(seed)
        self.proxies = Proxies() if with_proxies else None
        self._setup = {
            key: value
            for key, value in (
                ("segment_bytes", segment_bytes),
                ("snapshot_bytes", snapshot_bytes),
                ("pace", pace),
            )
            if value is not None
        }
        super().__init__(
            directory,
            members,
            settings=settings,
            secured=secured,
            launch=self._start_unlike,
            peer_address=self._proxy_or_peer,
        )

    def _proxy_or_peer(self, member: LocalMember, other: LocalMember) -> str:
        if self.proxies is None or member.name == other.name:
            return other.peer
        return self.proxies.address(member.name, other.name, other.peer)

    def _start_unlike(self, member: LocalMember, sink: LineSink | None) -> MemberProcess:
        """Members differ in their environment, and each has a disk with faults."""
        setup = {"seed": self.chance.randrange(1 << 32), **self._setup}
        (member.folder / SETUP_FILE).write_text(json.dumps(setup), encoding="ascii")
        place = self.names.index(member.name)
        variables = {
            "PYTHONPATH": f"{ROOT}:{ROOT / 'selectors'}:{ROOT / 'tests'}",
            **UNLIKE[place % len(UNLIKE)],
        }
        program = ("-m", "support.processes.member")
        return MemberProcess(member.name, member.config, member.output, sink, program, variables)

    def stop(self, names: Sequence[str] | None = None, grace_s: float = STOP_GRACE_S) -> list[str]:
        killed = super().stop(names, grace_s)
        if names is None and self.proxies is not None:
            self.proxies.close()
        return killed

    # ---- faults

    def set_faults(self, name: str, faults: Faults) -> None:
        """From now on, and for processes of this member that are started later."""
        faults.write(self.member(name).folder / FAULTS_FILE)

    def cut_power(self, *names: str) -> list[PowerCutSaid]:
        """Of all these members at the same moment."""
        for name in names:
            self.processes.send(name, signal.SIGUSR1)
        return [self._await_cut(name) for name in names]

    def _await_cut(self, name: str) -> PowerCutSaid:
        status = self.await_end(name, CUT_LIMIT_S)
        if status != CUT_STATUS:
            raise ClusterError(
                f"member {name} ended with {status} at a power cut:\n{self.processes.last_output(name)}"
            )
        said = [line for line in self.output(name).splitlines() if line.startswith("power cut: ")][-1]
        words = said.removeprefix("power cut: ").split()
        kept, names = words[words.index("durable,") + 1], words[words.index("something;") + 1]
        return PowerCutSaid(int(words[0]), int(kept), int(names))

    def await_end(self, name: str, limit_s: float = END_LIMIT_S) -> int:
        """The exit status of a member that ends by itself; it may be started again afterwards."""
        return self.processes.await_end(name, limit_s)

    def output(self, name: str) -> str:
        """All that the member's processes have written."""
        return self.member(name).output.read_text(encoding="utf-8", errors="replace")


def states(cluster: LocalCluster) -> dict[str, dict[int, tuple[int, int]]]:
    """By member, then group: (applied index, hash of the state). Of those that answer."""
    found = {}
    for name in cluster.running():
        status = cluster.status(name, with_state_hash=True)
        if status is not None:
            found[name] = {each.group: (each.applied_index, each.state_hash) for each in status.groups}
    return found


async def all_equal(cluster: LocalCluster) -> str:
    """Waits until all members have applied the same entries, and compares what they made of them."""
    deadline = time.monotonic() + EQUAL_LIMIT_S
    while True:
        found = await asyncio.to_thread(states, cluster)
        applied = {
            tuple((group, each[0]) for group, each in sorted(state.items())) for state in found.values()
        }
        if len(found) == len(cluster.names) and len(applied) == 1:
            break
        assert time.monotonic() < deadline, f"members are not equally far within {EQUAL_LIMIT_S} s: {found}"
        await asyncio.sleep(POLL_S)
    first, *others = found.values()
    assert all(state_hash for _, state_hash in first.values()), f"no hashes: {found}"
    assert all(other == first for other in others), f"members' states differ at the same entries: {found}"
    return f"{len(found)} members equal after {sum(index for index, _ in first.values()):,} entries"
