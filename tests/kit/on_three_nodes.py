"""Which tests run on three nodes (kit/three_nodes.py): those of SUITES whose broker is the fixture `nodes`, but for
LEFT_OUT. Each list has a reason, then paths below tests/: of a file, or of a test in it.

Every test of AMQP clients runs with one library, and only with `-m soak` with all of them; LONG run only there.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from kit.broker import WHICH

__all__ = ["EXCLUSIVE", "LEFT_OUT", "LONG", "SUITES", "keeps_exclusive", "mark_long", "may_use_nodes",
           "parameters"]

TESTS = Path(__file__).parents[1]
SUITES = ("amqp091", "queues")
Names = dict[str, tuple[str, ...]]

LEFT_OUT: Names = {
    # ── partitions at several nodes ────────────────────────────────────────────────────────────────────────────────
    "a member of an exclusive group that comes or goes may move more partitions than it must": (
        "queues/test_08_exclusive.py::test_partitions_are_balanced_over_members_and_stay_where_they_are",
    ),
    "prefetch is divided among partitions: a member that is about to lose some may have less than all of it": (
        "queues/test_08_exclusive.py::test_keys_keep_their_order_while_members_come_and_go",
    ),
    # ── by nature ────────────────────────────────────────────────────────────────────────────────────────────────
    "it is about what one broker shows of itself, or has in its configuration": (
        "queues/test_07_cli.py::test_list_purge_and_delete",
        "queues/test_07_cli.py::test_no_broker_and_what_is_no_broker",
        "queues/test_07_cli.py::test_tail_follows",
        "queues/test_07_cli.py::test_what_is_changed_is_in_force_at_once_and_after_a_crash",
        "queues/test_06_metrics.py", "queues/test_10_docs.py", "queues/test_15_amqp_docs.py"),
    "it needs a broker with settings of its own": (
        "queues/test_01_classic.py::test_receive_maximum_bounds_a_consumer",
        "queues/test_01_classic.py::test_a_queue_is_made_where_the_configuration_says_so",
        "queues/test_02_streams.py::test_a_long_time_between_commits",
        "queues/test_03_disk.py",
        "queues/test_04_delays.py::test_scattered_due_times_on_disk",
        "queues/test_07_cli.py::test_a_thousand_dead_letters_and_a_backlog_on_disk",
        "queues/test_07_orders.py::test_orders_to_who_is_not_there",
        "queues/test_08_mqtt.py::test_a_will_goes_into_the_queue",
        "queues/test_08_mqtt.py::test_a_will_makes_its_queue_where_the_configuration_says_so",
        "queues/test_11_keys.py", "queues/test_16_clients.py",
        "queues/test_18_namespaces.py"),
    "files of a queue on one disk": ("queues/test_04_loss.py::test_names_become_paths",),
    "octets of one connection, which do not reach a queue": (
        "amqp091/test_wire.py::test_mutations_of_a_conversation", "amqp091/test_wire.py::test_a_silent_client_is_cut"),
    "models of routing by exchanges, which are in the tables of each node": ("amqp091/test_10_routes.py",),
    "what is published without confirms may still be under way when its connection ends": (
        "amqp091/test_14_channels.py::test_a_connection_that_is_closed_behind_publishes",),
}

# Of all other tests of AMQP clients, exclusive queues become ordinary ones, so that another node has them.
EXCLUSIVE: Names = {
    "it is about exclusive queues, and names that the broker gives": (
        "amqp091/test_03_queues.py::test_server_named",
        "amqp091/test_03_queues.py::test_an_exclusive_queue_is_its_connections",
        "amqp091/test_03_queues.py::test_an_exclusive_queue_goes_with_its_connection",
        "amqp091/test_09_details.py::test_an_exclusive_queue_is_never_durable",
        "amqp091/test_11_quorum_and_stream.py::test_what_they_cannot_be",
        "amqp091/test_wire.py::test_plain"),
}

LONG: Names = {
    "all nodes are killed, or stopped, and start again": (
        "queues/test_01_classic.py::test_nothing_is_lost_or_forgotten_by_a_restart",
        "queues/test_01_classic.py::test_a_kept_session_goes_on_consuming",
        "queues/test_01_classic.py::test_what_a_group_had_settled_is_gone_when_the_group_is",
        "queues/test_04_delays.py::test_a_producer_that_repeats_itself_delays_once",
        "queues/test_04_loss.py",
        "queues/test_07_cli.py::test_create_with_every_limit_and_describe",
        "queues/test_07_cli.py::test_dead_letters_are_browsed_and_replayed",
        "queues/test_07_cli.py::test_dead_letters_are_purged_and_do_not_come_back",
        "queues/test_07_cli.py::test_seek_of_a_work_group",
        "queues/test_07_cli.py::test_what_was_delayed_when_it_was_purged_does_not_come",
        "queues/test_08_exclusive.py::test_a_hot_standby_takes_over",
        "queues/test_08_exclusive.py::test_counts_on_the_wire_whatever_brought_it_back",
        "queues/test_08_mqtt.py::test_capture_confirmed_is_a_promise",
        "queues/test_08_mqtt.py::test_shared_subscriptions_come_back_with_their_session",
        "queues/test_12_retry_policy.py::test_it_survives",
        "queues/test_14_interop.py::test_bindings_are_there_after_a_restart"),
    "what it shows of queues is shown by others, too": ("amqp091/test_wire.py",),
}


def _names(lists: Names) -> frozenset[str]:
    return frozenset(name for names in lists.values() for name in names)


_LEFT_OUT, _EXCLUSIVE, _LONG = map(_names, (LEFT_OUT, EXCLUSIVE, LONG))


def _is_in(names: frozenset[str], test: Any) -> bool:
    """test: an item, or the definition of a test."""
    path = str(test.path.relative_to(TESTS))
    return path in names or f"{path}::{test.originalname}" in names


def parameters(definition: Any) -> list[Any]:
    """How many nodes a test runs on, each time that it runs."""
    runs = [pytest.param(1, id=pytest.HIDDEN_PARAM)]
    if (may_use_nodes(definition.path) and not _is_in(_LEFT_OUT, definition) and not WHICH
            and definition.config.getoption("--amqp-broker") == "fluxmq"):
        runs.append(pytest.param(3, id="three-nodes"))
    return runs


def may_use_nodes(path: Path) -> bool:
    """Whether a file of tests may have some that run on three nodes."""
    name = path.relative_to(TESTS)
    return name.parts[0] in SUITES and str(name) not in _LEFT_OUT


def keeps_exclusive(item: Any) -> bool:
    """Whether exclusive queues stay what they are in a test."""
    return _is_in(_EXCLUSIVE, item)


def mark_long(items: list[pytest.Item]) -> None:
    """Leaves to `-m soak` what CI has no time for: LONG, and of a test of AMQP clients all libraries but one."""
    libraries: dict[tuple[Path, str], list[Any]] = {}       # that a test runs with
    found = [item for item in items if isinstance(item, pytest.Function) and hasattr(item, "callspec")
             and item.callspec.params.get("nodes") == 3]
    for item in found:
        client = item.callspec.params.get("client")
        ones = libraries.setdefault((item.path, item.originalname), [])
        if client is not None and client not in ones:
            ones.append(client)
    for item in found:
        client, ones = item.callspec.params.get("client"), libraries[item.path, item.originalname]
        if _is_in(_LONG, item) or (client is not None and client is not ones[crc32(
                item.originalname.encode()) % len(ones)]):
            item.add_marker(pytest.mark.soak)
