"""A machine of the simulated world: its address is its name, it has a clock and a disk, and a node runs on it or not.

What runs there, and under which name, an operator may change (changes.py); who a node is to the others, its data
directory says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quorum.node.identity.identity import Founding
from simulator.machines.disk import FaultyDisk
from simulator.machines.loop import Clock

CLUSTER = "simulation"
SECRET = b"the secret of all the peers here"


@dataclass(slots=True)
class Machine:
    """See the module's text."""

    name: str
    clock: Clock
    disk: FaultyDisk
    node_name: str
    """how the node is called that is configured here"""
    founding: Founding
    """what its configuration says the cluster began with; no members: it joins"""
    is_wiped: bool = False
    """its data directory was lost, and what runs here is still configured as what it was"""
    is_retired: bool = False
    """nothing is started here any more"""

    def wipe(self, seed: int) -> None:
        """What was on the disk is gone, for good; nothing may run here."""
        self.disk = FaultyDisk(seed)
        self.is_wiped = True

    def set_up(self, node_name: str, seed: int) -> None:
        """As for a node that joins a running cluster: a new configuration, an empty data directory."""
        self.wipe(seed)
        self.is_wiped = self.is_retired = False
        self.node_name = node_name
        self.founding = replace(self.founding, members=())
