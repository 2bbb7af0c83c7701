"""All kinds of histories of a cluster, by name: each is a function of the history's number, which raises if it goes
wrong. One test file has each kind, with what it expects."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from simulator.cluster import (
    quorum_history,
    test_adoption,
    test_brokers,
    test_confirm_histories,
    test_divided_histories,
    test_hanging_disk_histories,
    test_hop_histories,
    test_kept,
    test_later_connects,
    test_old_copy_histories,
    test_queue_histories,
    test_repetitions,
    test_retained,
    test_retained_histories,
    test_share_histories,
    test_shares,
    test_silent_move_histories,
    test_stream_histories,
    test_takeover,
    test_two_deaths_histories,
    test_will_histories,
    test_wills,
)

__all__ = ["KINDS", "MIXES"]

QUEUES = "queues: "         # how the names of kinds with queues of the cluster begin
DIVIDED = "divided: "       # and with queues whose partitions are at several nodes

KINDS: dict[str, Callable[[int], object]] = {
    "adopter dies": test_adoption.test_an_adopter_dies_in_the_middle,
    "client hops": test_takeover.test_a_client_that_hops_under_load_misses_nothing,
    "client hops while a node is dead": test_adoption.test_the_client_hops_while_a_node_is_dead,
    "client hops while links stand still": test_takeover.test_a_client_that_hops_while_links_stand_still,
    "client and publishers hop while links stand still":
        test_hop_histories.test_a_subscriber_and_publishers_that_hop_while_links_stand_still,
    "client moves on": test_takeover.test_a_client_that_moves_on_before_its_session_has_come_whole,
    "disk hangs": test_hanging_disk_histories.run,
    "earlier and later connects": test_later_connects.test_the_last_one_gets_it_whatever_the_others_do,
    "keys of sessions": test_kept.test_the_store_has_what_the_session_has,
    "member of a group moves": test_shares.test_the_only_member_moves_while_messages_come,
    "members of groups come and go": test_shares.History,
    "new owner dies": partial(test_takeover.test_a_node_that_is_killed_meanwhile_loses_nothing_acknowledged, who="new"),
    "new owner stands still":
        test_takeover.test_a_new_owner_that_stood_still_does_not_get_what_the_old_one_has_taken_back,
    "node dies and comes back": test_adoption.test_a_node_dies_and_comes_back,
    "node dies while it comes back": test_adoption.test_the_node_dies_while_it_comes_back,
    "old copies and rivals": test_old_copy_histories.play,
    "old owner dies": partial(test_takeover.test_a_node_that_is_killed_meanwhile_loses_nothing_acknowledged, who="old"),
    "publisher is adopted": test_repetitions.test_a_publisher_whose_session_is_adopted_is_heard_once,
    "publisher's node dies": test_repetitions.test_a_publisher_whose_node_dies_between_two_packets_is_heard_once,
    **{DIVIDED + level: partial(test_divided_histories.run, faults=faults)
       for level, faults in test_divided_histories.LEVELS.items()},
    **{f"{QUEUES}confirms, {level}": partial(test_confirm_histories.run, faults=faults)
       for level, faults in test_confirm_histories.LEVELS.items()},
    **{QUEUES + level: partial(test_queue_histories.run, faults=faults)
       for level, faults in test_queue_histories.LEVELS.items()},
    **{QUEUES + level: partial(test_stream_histories.run, faults=faults)
       for level, faults in test_stream_histories.LEVELS.items()},
    "members of groups on nodes that lose their leases": test_share_histories.run,
    "members without sessions on nodes that lose their leases": partial(test_share_histories.run, clean=True),
    QUEUES + "a move and two deaths": test_two_deaths_histories.run,
    QUEUES + "moves behind silent links": test_silent_move_histories.run,
    "quorum": quorum_history.play,
    "receiver restarts": test_repetitions.test_a_receiver_that_restarts_gets_each_message_once,
    "retained": test_retained.test_nodes_agree_after_kills_in_the_middle_of_it,
    **{"retained in turn: " + level: partial(test_retained_histories.run, faults=faults)
       for level, faults in test_retained_histories.LEVELS.items()},
    "streams break": test_brokers.test_broken_streams_lose_nothing_repeat_nothing_and_keep_the_order,
    **{level: partial(test_will_histories.run, faults=faults) for level, faults in test_will_histories.LEVELS.items()},
    "wills": test_wills.test_each_session_gets_a_will_once_whoever_dies_and_comes_back_meanwhile,
}

# In one round of a mix; of others one. Several defects show in few of the histories of these kinds, and in no others.
TIMES = {"quorum": 6, "wills": 3, QUEUES + "nodes": 4, QUEUES + "all": 4,
         QUEUES + "a move and two deaths": 4, DIVIDED + "moves": 2, DIVIDED + "all": 2}


def mix(names: Iterable[str]) -> list[str]:
    """These kinds, in the order in which they are played in turn."""
    return [name for _, name in sorted(((turn + 0.5) / TIMES.get(name, 1), name)
                                       for name in names for turn in range(TIMES.get(name, 1)))]


# What is played in turn. Queues are by themselves, so that none of these takes another's place among 300 histories.
MIXES = {"sessions": mix(name for name in KINDS if not name.startswith((QUEUES, DIVIDED))),
         "queues": mix(name for name in KINDS if name.startswith(QUEUES)),
         "divided": mix(name for name in KINDS if name.startswith(DIVIDED))}
