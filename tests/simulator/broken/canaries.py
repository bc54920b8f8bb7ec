"""Broken builds that the simulation must notice: each takes one promise away, by a subclass or a function that stands
where the product's own would.

Nothing here is reachable from the product. `CANARIES` is the one list. `make simulate CANARIES=1` says for each how
many seeds it takes until one catches it; `make test` takes those that are quick, from a short seed on. Builds without
a single rule of Raft are in support/raft/ablations.py: Raft's own fuzz finds them, in a fraction of a second each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simulator.broken import parts as broken
from simulator.world import Build

LIMIT = 300
"""Seeds within which each must have been caught CATCHES times."""
CATCHES = 3
MOST_SEEDS = 20
"""That it may take until a build is caught: the median of the gaps between those seeds that catch it."""
QUICK_SEEDS = 12
"""Seeds within which `make test` has to catch a quick one."""


@dataclass(frozen=True, slots=True)
class Canary:
    """promise: what it breaks. is_quick: it is caught within a few seeds, so that every `make test` looks for it.
    scene: the test that fails on it, file::name, where the moment is too rare in the simulation."""

    name: str
    promise: str
    build: Callable[[], Build]
    is_quick: bool = False
    scene: str = ""


def _patched(
    name: str, promise: str, *, scenario: str = "", is_quick: bool = False, scene: str = "", **patches: Any
) -> Canary:
    """scenario: see Build. patches: what stands in which place, with __ for each dot."""
    by_place = {key.replace("__", "."): value for key, value in patches.items()}
    return Canary(name, promise, lambda: Build(name, patches=by_place, scenario=scenario), is_quick, scene)


CANARIES: tuple[Canary, ...] = (
    # ---- durability
    _patched(
        "confirm before sync",
        "what is confirmed survives a power cut of all",
        is_quick=True,
        quorum__log__log__Writer=broken.ConfirmsBeforeSync,
    ),
    _patched(
        "promise before sync",
        "no vote and no acknowledgement leaves before its sync",
        quorum__node__opening__Group=broken.GroupThatPromisesEarly,
    ),
    _patched(
        "CRC skipped",
        "damage is noticed and never served",
        scene="tests/log/test_log_damage.py::test_a_flipped_bit_while_the_log_is_open_is_noticed_by_the_reader",
        quorum__log__segment_files__scanner__body_is_good=broken.any_body_is_good,
        quorum__log__reader__body_is_good=broken.any_body_is_good,
        quorum__log__segment_files__segments__Stamp=broken.StampWithoutCrc,
    ),
    Canary(
        "live message dropped",
        "garbage collection keeps what a snapshot refers to",
        lambda: Build("live message dropped", log=broken.LogThatDropsLive),
    ),
    Canary(
        "pages dropped",
        "garbage collection keeps the pages that a snapshot names",
        lambda: Build("pages dropped", log=broken.LogWithoutPages),
        is_quick=True,
    ),
    Canary(
        "snapshot before its pages",
        "a snapshot is durable only with what it names",
        lambda: Build(
            "snapshot before its pages",
            patches={
                "quorum.node.replica.replica.Replica.save_snapshot": broken.before_its_pages,
                "quorum.log.journal.Journal._sync_to": broken.no_entries_first,
            },
        ),
    ),
    _patched(
        "snapshot without its bodies",
        "a member takes part with a snapshot only once it has the bodies",
        quorum__node__repair__snapshot_bodies__SnapshotBodies__prepare=broken.without_bodies,
    ),
    # ---- members
    _patched(
        "emptied disk welcome",
        "a member that lost its disk is refused under its old identity",
        scenario="wipe",
        quorum__node__cluster__membership__Membership__remember=broken.meets_anew,
        quorum__node__identity__member_directory__MemberDirectory__incarnation=broken.whoever,
        quorum__node__cluster__rollback_marks__RollbackMarks__remembered=broken.believes_itself,
    ),
    # ---- publishing
    _patched(
        "deduplication lost",
        "a batch that is sent again is taken once",
        is_quick=True,
        fifo__producers__Producer__fresh=broken.everything_is_fresh,
    ),
    _patched(
        "published batch forgotten",
        "a staged batch is published once",
        scenario="bulk",
        fifo__staging__Staging__published=broken.not_remembered,
    ),
    # ---- delivery
    _patched(
        "highest first",
        "first deliveries to a consumer keep each producer's order",
        is_quick=True,
        fifo__consumers__delivery__Delivery__choose=broken.highest_first,
    ),
    _patched(
        "redelivered flag lost",
        "a repeat carries the redelivered flag",
        fifo__consumers__delivery__Delivery__effect=broken.never_redelivered,
    ),
    _patched(
        "every 50th settle returns",
        "what is settled is never delivered again",
        fifo__consumers__queue_consumers__QueueConsumers__settle=broken.returns_some,
    ),
    _patched(
        "deliveries of an ended attachment",
        "one consumer holds a message at a time",
        quorum__api__session__consumers__SessionConsumers___is_current=broken.always_current,
    ),
    _patched(
        "unsettled messages forgotten",
        "what a lost consumer held is ready again",
        quorum__node__replica__bootstrap__GroupMachine=broken.ForgetsUnsettled,
    ),
    _patched(
        "reservation not repeated",
        "a subscription that asks again gets the same messages",
        scenario="bulk",
        fifo__subscriptions__Subscriptions___reserve=broken.always_new,
    ),
    _patched(
        "selector skips arrivals",
        "a consumer with a selector gets every message that matches",
        fifo__consumers__selector_groups__SelectorGroups__look_up_arrivals=broken.skips_arrivals,
    ),
    _patched(
        "rare fields lost",
        "a selector sees every field that its queue keeps",
        scenario="wide",
        quorum_selectors__block_columns__BlockColumns___put_sparse=broken.loses_rare_fields,
    ),
    _patched(
        "missed answers not asked for",
        "a session goes on after its node was sent a snapshot",
        scene="tests/node/test_member.py::test_a_member_too_far_behind_gets_a_snapshot_and_its_sessions_start_over",
        quorum__node__sessions__session_table__SessionTable__answers_missed=broken.not_asked_again,
    ),
    # ---- leases and reads
    Canary(
        "lapse of a lease ignored",
        "nothing is delivered without a lease",
        lambda: Build(
            "lapse of a lease ignored",
            patches={
                "quorum.node.member.Heartbeats": broken.ForgetsLapses,
                "quorum.api.hub.hub.Hub.check_leases": broken.never_lapsed,
                "quorum.api.hub.published_state.PublishedState.may_deliver": broken.always_leased,
            },
        ),
        is_quick=True,
    ),
    _patched(
        "lease too long",
        "nobody is handed what another one holds with a lease",
        scene="tests/node/test_member_leases.py::"
        "test_a_cluster_that_shrank_to_one_member_and_grew_again_hands_out_no_message_twice",
        quorum__node__leases__leases__Leases__held_until=broken.too_long,
    ),
    _patched(
        "node declared down early",
        "a member's sessions end only when its lease is over",
        quorum__node__leases__leases__Leases__is_down=broken.down_after_a_moment,
    ),
    _patched(
        "lease times settled at once",
        "a successor waits for every lease that was granted before lease times were lowered",
        scenario="leases",
        quorum__catalog__lease_times__LeaseSettings__changed=broken.settled_at_once,
    ),
    _patched(
        "no barrier before reads",
        "reads are linearizable",
        is_quick=True,
        quorum__api__hub__member_requests__MemberRequests__query_current=broken.from_what_is_here,
    ),
    # ---- what may leave a queue
    _patched(
        "TTL never expires",
        "what has expired is not delivered, and leaves",
        scenario="brief",
        is_quick=True,
        fifo__messages__runs__Runs__expired=broken.nothing_expires,
    ),
    _patched(
        "half the TTL",
        "a message expires only after its TTL",
        scenario="brief",
        fifo__messages__messages__Messages__expires_at=broken.half_the_ttl,
    ),
    _patched(
        "drop-head never drops",
        "a queue has at most x-max-length ready messages",
        scenario="short",
        is_quick=True,
        fifo__queue_machine__overflow__drop_head=broken.drops_nothing,
    ),
    _patched(
        "drop-head drops the newest",
        "the oldest messages make room",
        scenario="short",
        fifo__queue_machine__overflow__drop_head=broken.drops_the_newest,
    ),
    _patched(
        "reject-publish refuses nothing",
        "a full queue refuses what does not fit",
        scenario="strict",
        fifo__messages__overflow__refuse_more=broken.takes_everything,
    ),
    _patched(
        "delivery limit never reached",
        "a message is delivered at most once more than its queue's delivery limit",
        scenario="patient",
        fifo__messages__bitsets__Counts__above=broken.never_too_often,
    ),
    _patched(
        "delivery limit of one",
        "a message leaves for its delivery limit only after it",
        scenario="patient",
        fifo__messages__bitsets__Counts__above=broken.once_is_too_often,
    ),
    _patched(
        "an urgent message waits",
        "no message is handed out before one with a higher priority",
        scenario="urgent",
        is_quick=True,
        fifo__messages__ready_order__PriorityOrder__next_of=broken.of_any_priority,
    ),
    _patched(
        "embargo ended by a failover",
        "a delayed message is not ready before its time, whichever member leads",
        scenario="delays",
        fifo__group_machine__GroupMachine___node_down=broken.ends_delays,
    ),
    # ---- transactions
    _patched(
        "commit in one queue",
        "a transaction counts in all of its queues, or in none",
        scenario="transactions",
        is_quick=True,
        fifo__queue_transactions__QueueTransactions__commit=broken.commits_where_it_settles,
    ),
    _patched(
        "committed group by group",
        "a transaction counts in all of its groups, or in none",
        scenario="transactions",
        quorum__api__session__shared_commit__SharedCommit__begin=broken.commits_group_by_group,
    ),
    _patched(
        "prepared and forgotten",
        "nothing but the decision ends a prepared part",
        scenario="transactions",
        fifo__decisions__Decisions__prepare=broken.prepares_nothing,
        fifo__decisions__Decisions__finish=broken.finishes_what_is_open,
    ),
    _patched(
        "rollback settles",
        "what a transaction has settled stays with its consumer when it is rolled back",
        scenario="transactions",
        fifo__queue_transactions__QueueTransactions__drop=broken.rollback_settles,
    ),
    _patched(
        "transactions in order only",
        "a transaction may come to a group later than its successors",
        scenario="transactions",
        fifo__producers__Producer__may_begin=broken.begins_in_order,
    ),
    # ---- exchanges
    _patched(
        "no message is mandatory",
        "a mandatory message for no queue is refused",
        scenario="exchanges",
        is_quick=True,
        quorum__api__session__publisher__SessionPublisher___publish_through=broken.never_mandatory,
    ),
    _patched(
        "copies of a repeat",
        "a message for several queues that comes again is in each of them once",
        scenario="exchanges",
        fifo__group_machine__GroupMachine___enqueue_targets=broken.takes_repeats,
    ),
    # ---- dead letters
    _patched(
        "buried before it is dead-lettered",
        "a dead letter is settled only after its target has confirmed it",
        scenario="deaths",
        is_quick=True,
        quorum__api__dead_letters__worker___Session__send=broken.settled_before_it_is_confirmed,
    ),
    _patched(
        "dead letters of anybody",
        "a dead letter that is sent again is in its target once",
        scenario="deaths",
        fifo__group_machine__GroupMachine___claim_dead=broken.another_producer_each_time,
    ),
    _patched(
        "dead letters of a known producer",
        "no client can take the place of the node that forwards dead letters",
        scenario="deaths",
        fifo__group_machine__GroupMachine___claim_dead=broken.producer_that_clients_know,
    ),
    # ---- consumers
    _patched(
        "everybody is active",
        "of a queue with a single active consumer no two hold messages at a time",
        scenario="alone",
        is_quick=True,
        fifo__consumers__single_active__SingleActive__elect=broken.everybody_is_active,
    ),
    _patched(
        "held too long though settled",
        "a consumer timeout takes no messages that were held for less",
        scenario="alone",
        fifo__consumers__consumer__CheckedOut__has_up_to=broken.holds_for_ever,
    ),
    _patched(
        "group handed to two",
        "of a message group no two consumers hold messages at a time",
        scenario="grouped",
        is_quick=True,
        fifo__messages__message_groups__MessageGroups___heads=broken.heads_for_everybody,
    ),
    # ---- single messages
    _patched(
        "gathered in any order",
        "messages that were gathered keep the order of their calls",
        scenario="singles",
        is_quick=True,
        quorum__client__session__publisher__Gathering=broken.GathersInAnyOrder,
    ),
    _patched(
        "neighbours refused along",
        "a message that is refused does not take its neighbours along",
        scenario="singles",
        is_quick=True,
        quorum__api__session__session_routes__batches__refused_each=broken.with_their_neighbours,
    ),
    _patched(
        "refusals confirmed",
        "an independent message that does not fit is refused",
        scenario="singles",
        fifo__group_machine__GroupMachine___enqueue_rest=broken.confirms_refusals,
    ),
    _patched(
        "immediate messages wait",
        "an immediate message that is refused is in no queue",
        scenario="singles",
        fifo__targets___only=broken.takes_what_nobody_takes,
    ),
    _patched(
        "first queue of a batch only",
        "every queue of a batch gets its messages",
        scenario="routing",
        is_quick=True,
        fifo__targets__choose=broken.first_target_only,
    ),
    _patched(
        "numbers of other groups",
        "a group takes the numbers of its own messages, and no others",
        scenario="routing",
        quorum__api__session__publisher__numbers_of=broken.numbers_without_gaps,
    ),
    # ---- versions
    _patched(
        "switch by a majority",
        "groups switch to a machine version only when every member knows it",
        scenario="versions",
        quorum__node__cluster__version_switch__VersionSwitch___known_by_all=broken.known_by_a_majority,
    ),
)
