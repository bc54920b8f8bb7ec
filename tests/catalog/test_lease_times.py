"""The cluster's lease times: founded once, changed in two steps (quorum/catalog/lease_times.py)."""

from __future__ import annotations

import itertools
import json

import pytest

from fifo import commands as c
from fifo.effects import Ok, Refused
from fifo.versions import CURRENT
from quorum.catalog.commands import CatalogCommand
from quorum.catalog.lease_times import (
    LARGEST,
    FoundLeaseTimes,
    LeaseSettings,
    LeaseTimes,
    SetLeaseTimes,
    SettleLeaseTimes,
)
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.members import BootstrapCluster, founders
from support.catalog import Catalog

FIRST = LeaseTimes(4_000, 1_500)


class CatalogOfTimes(Catalog):
    def __init__(self, *commands: CatalogCommand) -> None:
        super().__init__((1,))
        for command in commands:
            self.own(command)

    def own(self, command: CatalogCommand) -> None:
        """A command without a session."""
        self.machine.apply(c.Meta(self.n, 1, 1_000, CURRENT), [c.Operation(0, None, command)])

    @property
    def settings(self) -> LeaseSettings:
        assert self.machine.lease_settings is not None
        return self.machine.lease_settings


def test_a_new_clusters_times_are_settled_at_once_and_founded_once() -> None:
    catalog = CatalogOfTimes(FoundLeaseTimes(4_000, 1_500), FoundLeaseTimes(30_000, 9_000))
    assert catalog.settings == LeaseSettings(1, FIRST, FIRST, FIRST)
    assert catalog.settings.is_settled


def test_a_cluster_from_before_there_were_such_settings_awaits_the_largest_lease_first() -> None:
    catalog = CatalogOfTimes(BootstrapCluster(founders({"a": ("", "")})), FoundLeaseTimes(4_000, 1_500))
    assert catalog.settings == LeaseSettings(1, FIRST, FIRST, LARGEST)
    catalog.own(SettleLeaseTimes(1))
    assert catalog.settings == LeaseSettings(2, FIRST, FIRST, FIRST)


@pytest.mark.parametrize("wanted", [LeaseTimes(30_000, 3_000), LeaseTimes(500, 500), LeaseTimes(30_000, 500)])
def test_a_change_never_grants_more_than_successors_wait_for(wanted: LeaseTimes) -> None:
    catalog = CatalogOfTimes(FoundLeaseTimes(4_000, 1_500))
    assert catalog.call(SetLeaseTimes(wanted.lease_ms, wanted.step_down_ms)) == Ok(1)
    changing = catalog.settings
    catalog.own(SettleLeaseTimes(1))
    assert catalog.settings == changing, "that was another revision"
    catalog.own(SettleLeaseTimes(2))
    steps = [LeaseSettings.founded(FIRST), changing, catalog.settings]
    assert [each.revision for each in steps] == [1, 2, 3]
    assert steps[-1] == LeaseSettings(3, wanted, wanted, wanted)
    for one, other in itertools.pairwise(steps):  # members are one step apart at most
        for granting, waiting in ((one, other), (other, one), (other, other)):
            assert granting.granted.larger(waiting.awaited) == waiting.awaited


def test_a_change_of_a_change_waits_for_both() -> None:
    catalog = CatalogOfTimes(FoundLeaseTimes(4_000, 1_500))
    catalog.call(SetLeaseTimes(30_000, 1_500))
    catalog.call(SetLeaseTimes(1_000, 1_500))
    assert catalog.settings.granted.lease_ms == 1_000
    assert catalog.settings.awaited.lease_ms == 30_000
    catalog.own(SettleLeaseTimes(2))
    assert not catalog.settings.is_settled


@pytest.mark.parametrize(
    "wanted", [(499, 1_500), (60_001, 1_500), (4_000, 499), (4_000, 120_001), (1 << 63, 500)]
)
def test_times_that_configuration_would_not_allow_are_refused(wanted: tuple[int, int]) -> None:
    catalog = CatalogOfTimes(FoundLeaseTimes(4_000, 1_500))
    reply = catalog.call(SetLeaseTimes(*wanted))
    assert isinstance(reply, Refused)
    assert reply.reason == "bad_argument"
    assert "allowed" in reply.detail
    assert catalog.settings == LeaseSettings.founded(FIRST)


def test_the_same_times_again_change_nothing_and_none_can_be_set_before_there_are_some() -> None:
    catalog = CatalogOfTimes()
    assert isinstance(catalog.call(SetLeaseTimes(4_000, 1_500)), Refused)
    catalog.own(FoundLeaseTimes(4_000, 1_500))
    assert catalog.call(SetLeaseTimes(4_000, 1_500)) == Ok(0)
    assert catalog.settings.revision == 1


def test_settings_survive_a_snapshot_and_an_older_snapshot_has_none() -> None:
    catalog = CatalogOfTimes(FoundLeaseTimes(4_000, 1_500))
    catalog.call(SetLeaseTimes(30_000, 1_500))
    data = catalog.machine.snapshot()
    restored = CatalogMachine.restore(data)
    assert restored.lease_settings == catalog.settings
    assert restored.snapshot() == data
    state = json.loads(data)
    del state["lease_settings"]
    assert CatalogMachine.restore(json.dumps(state | {"format": 3}).encode()).lease_settings is None


@pytest.mark.parametrize(
    "state", [[], [1], [1, [1, 2], [1, 2]], [1, [1, 2], [1, 2], [1]], 7, ["1", [1, 2], [1, 2], [1, 2]]]
)
def test_what_is_no_settings_is_refused(state: object) -> None:
    data = json.loads(CatalogMachine((1,)).snapshot())
    with pytest.raises(ValueError, match=r"Lease(Settings|Times)|no integer"):
        CatalogMachine.restore(json.dumps(data | {"lease_settings": state}).encode())
