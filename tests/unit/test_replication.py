"""Settings of replication: the example of the seed, what a group and a queue inherit, each refusal with its words, and
the stored forms."""
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from unit.amqp_world import World

from fluxmq._core.errors import ConfigError
from fluxmq.app.cluster import ClusterRuntime
from fluxmq.app.config import InvalidConfig, load
from fluxmq.app.config_text import explain, show
from fluxmq.app.raft_checks import raft_warnings
from fluxmq.cluster.definition_values import encode_queue, queue_of
from fluxmq.engine.ports.definitions import QueueDefinition
from fluxmq.engine.queues.records import LogRecord, QueueRecord
from fluxmq.engine.stored import queue_of as stored_queue_of
from fluxmq.model.amqp import AmqpRefused
from fluxmq.model.entries import SpecError
from fluxmq.model.queue_arguments import Declared, read_arguments, spec_of
from fluxmq.model.queues import QueueSpec, read_spec, write_spec
from fluxmq.model.raft import ClusterRaft, QueueReplication, RaftGroup, read_groups, read_patterns, read_peers
from fluxmq.model.replication import (
    GroupSettings,
    Replication,
    ReplicationSettings,
    alone_warning,
    group_members,
    replication_of,
    sized_group,
)

# As it stands in the documentation that this one follows; two groups.
EXAMPLE = """\
cluster:
  raft:
    enabled: true
    auto_provision_groups: false

    # Base (default) group settings
    bind_addr: "127.0.0.1:7100"
    data_dir: "/tmp/fluxmq/raft"
    peers: {}

    groups:
      default:
        # Optional overrides for the default group
        bind_addr: "127.0.0.1:7100"
        data_dir: "/tmp/fluxmq/raft"
        peers: {}

      hot:
        bind_addr: "127.0.0.1:7200"
        data_dir: "/tmp/fluxmq/raft/groups/hot"
        peers: {}
"""
ON = ("cluster.enabled=true", "cluster.node_id=one", "cluster.raft.enabled=true")


def raft(**given: Any) -> ClusterRaft:
    """The section as it is written, in a cluster or not; only its own problems are looked at."""
    given = {"enabled": True} | given
    if "groups" in given:
        given["groups"] = read_groups(given["groups"])
    if "queues" in given:
        given["queues"] = read_patterns(given["queues"])
    return ClusterRaft(**given)


def settings(**given: Any) -> ReplicationSettings:
    return ReplicationSettings(raft(**given), True)


def queue(name: str = "q", **given: Any) -> QueueSpec:
    return read_spec({"name": name} | given)


def problems(*sets: str, file: Path | None = None) -> dict[str, str]:
    with pytest.raises(InvalidConfig) as caught:
        load(file, None, sets)
    return {problem.path: problem.text for problem in caught.value.problems if isinstance(problem, ConfigError)}


# ---------------------------------------------------------------- the section


def test_the_example_of_the_seed_is_taken_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "fluxmq.yaml"
    file.write_text(EXAMPLE)
    config, provenance = load(file)
    assert set(config.cluster.raft.groups) == {"default", "hot"} and config.cluster.raft.peers == ()
    hot = ReplicationSettings(config.cluster.raft, True).group("hot")
    assert hot == GroupSettings("hot", 3, 2, True, 5.0, 1.0, 3.0)
    assert raft_warnings(config) == ["cluster.raft.enabled: nothing is replicated without a cluster: set "
                                     "cluster.enabled"]
    again = tmp_path / "shown.yaml"
    again.write_text(show(config, provenance))
    assert load(again)[0] == config
    config, _ = load(file, None, ["cluster.enabled=true", "cluster.node_id=one"])
    assert [line.partition(": ")[0] for line in raft_warnings(config)] == [
        f"cluster.raft.{at}{key}" for at in ("", "groups.default.", "groups.hot.") for key in ("bind_addr", "data_dir")]


def test_a_node_does_not_start_with_what_is_not_there_yet(tmp_path: Path) -> None:
    config, _ = load(None, None, [*ON, f"storage.dir={tmp_path}"])
    with pytest.raises(ConfigError, match=r"cluster\.raft\.enabled: queues are not replicated yet"):
        ClusterRuntime(config, lambda *_: None, lambda *_: None).start()
    assert not list(tmp_path.iterdir())


def test_defaults_are_those_of_the_original_but_forward() -> None:
    assert msgspec.structs.asdict(ClusterRaft()) == {
        "enabled": False, "auto_provision_groups": True, "replication_factor": 3, "sync_mode": True,
        "min_in_sync_replicas": 2, "ack_timeout": 5.0, "write_policy": "forward", "distribution_mode": "forward",
        "heartbeat_timeout": 1.0, "election_timeout": 3.0, "peers": (), "groups": {}, "queues": (), "bind_addr": "",
        "data_dir": "", "snapshot_interval": 300.0, "snapshot_threshold": 8192}


@pytest.mark.parametrize("key", ["bind_addr=127.0.0.1:7100", "data_dir=/tmp/raft", "snapshot_interval=1m",
                                 "snapshot_threshold=100"])
def test_keys_without_effect_are_taken_described_and_warned_of(key: str) -> None:
    name, _, value = key.partition("=")
    config, _ = load(None, None, [*ON, f"cluster.raft.{key}", f"cluster.raft.groups={{hot: {{{name}: {value}}}}}"])
    lines = raft_warnings(config)
    assert [line.partition(": has no effect: ")[0] for line in lines] == [
        f"cluster.raft.{name}", f"cluster.raft.groups.hot.{name}"]
    assert "without effect" in explain(f"cluster.raft.{name}") + explain(f"cluster.raft.groups[].{name}")
    assert raft_warnings(load(None, None, ON)[0]) == []


def test_a_node_that_its_own_peers_do_not_name_is_warned_of() -> None:
    sets = [*ON, "cluster.raft.peers=[two, three]", "cluster.raft.groups={hot: {peers: [one, two]}}"]
    line, = raft_warnings(load(None, None, sets)[0])
    assert line.startswith("cluster.raft.peers: this node, one, is not named")


@pytest.mark.parametrize("policy", ["forward", "local", "reject"])
def test_policies(policy: str) -> None:
    assert load(None, None, [f"cluster.raft.write_policy={policy}"])[0].cluster.raft.write_policy == policy


@pytest.mark.parametrize(("sets", "path", "part"), [
    (["distribution_mode=replicate"], "distribution_mode", "not in this version"),
    (["replication_factor=11"], "replication_factor", "from 1 to 10"),
    (["ack_timeout=0s"], "ack_timeout", "from 1ms"),
    (["min_in_sync_replicas=4"], "min_in_sync_replicas", "4 replicas are to be in sync, and replication_factor is 3"),
    (["election_timeout=1800ms"], "election_timeout", "Set it to 2s or more, or heartbeat_timeout to 900ms or less"),
    (["peers=[one]"], "peers", "one: fewer nodes than min_in_sync_replicas, 2"),
    (["peers=[a/b]"], "peers[0]", "is no name of a node"),
    (["peers={a/b: x}"], "peers.a/b", "is no name of a node"),
    (["peers=7"], "peers", "names of nodes"),
    (["groups=[hot]"], "groups", "name: settings"),
    (["groups={hot: 7}"], "groups.hot", "a section is expected"),
    (["groups={hot: {peers: 7}}"], "groups.hot.peers", "as a list or as {name: address}"),
    (["groups={hot: {peers: ['']}}"], "groups.hot.peers[0]", "is no name"),
    (["groups={hot: {shard: 2}}"], "groups.hot.shard", "did you mean shards?"),
    (["groups={hot: {shards: 0}}"], "groups.hot.shards", "from 1 to 64"),
    (["groups={'a b': {}}"], "groups.a b", "letters, digits"),
    (["groups={default-r5: {}}"], "groups.default-r5", "Take another name"),
    (["groups={default: {enabled: false}}"], "groups.default.enabled", "always on"),
    (["groups={hot: {replication_factor: 1}}"], "groups.hot.min_in_sync_replicas",
     "2 replicas are to be in sync, and replication_factor is 1"),
    (["groups={hot: {heartbeat_timeout: 2s}}"], "groups.hot.election_timeout", "less than twice heartbeat_timeout, 2s"),
    (["groups={hot: {heartbeat_timeout: 50ms}}"], "groups.hot.heartbeat_timeout", "shorter than 100ms"),
    (["groups={hot: {peers: [one]}}"], "groups.hot.peers", "fewer nodes"),
    (["queues=[{group: hot}]", "auto_provision_groups=false"], "queues[0].group", "no replication group hot"),
    (["queues=[{group: a b}]"], "queues[0].group", "letters, digits"),
    (["queues=[a, a]"], "queues[1].pattern", "named twice"),
    (["queues=[{patern: a}]"], "queues[0].patern", "did you mean pattern?"),
    (["queues=7"], "queues", "a list of patterns"),
    (["snapshots=7"], "snapshots", "unknown key"),
])
def test_what_cannot_work_is_refused_where_it_stands(sets: list[str], path: str, part: str) -> None:
    found = problems(*ON, *(f"cluster.raft.{one}" for one in sets))
    assert list(found) == [f"cluster.raft.{path}"]
    assert part in found[f"cluster.raft.{path}"]


def test_what_is_wrong_for_all_groups_is_said_once_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("cluster:\n  raft:\n    min_in_sync_replicas: 5\n    groups:\n      hot: {shards: 2}\n"
                    "      cold:\n        heartbeat_timeout: 9s\n")
    found = problems(file=file)
    assert list(found) == ["cluster.raft.min_in_sync_replicas", "cluster.raft.groups.cold.election_timeout"]
    assert "c.yaml:3" in found["cluster.raft.min_in_sync_replicas"]


@pytest.mark.parametrize(("key", "given", "field", "base", "own"), [
    ("replication_factor", 5, "factor", 3, 5), ("min_in_sync_replicas", 3, "min_in_sync", 2, 3),
    ("sync_mode", False, "sync", True, False), ("ack_timeout", "9s", "ack_timeout_s", 5.0, 9.0),
    ("heartbeat_timeout", "500ms", "heartbeat_s", 1.0, 0.5), ("election_timeout", "8s", "election_s", 3.0, 8.0),
    ("peers", {"a": "x:1", "b": ""}, "peers", (), ("a", "b")), ("shards", 4, "shards", 1, 4)])
def test_a_group_has_what_it_does_not_say_from_the_section(key: str, given: Any, field: str, base: Any,
                                                           own: Any) -> None:
    found = settings(groups={"hot": {key: given}, "cold": None})
    assert getattr(found.group("hot"), field) == own
    for name in ("default", "cold", "made-on-demand"):
        assert getattr(found.group(name), field) == base
        assert found.group(name).name == name


def test_zero_inherits_and_default_may_differ_from_the_section() -> None:
    found = settings(replication_factor=5, sync_mode=False, groups={
        "default": {"replication_factor": 7}, "hot": {"replication_factor": 0, "ack_timeout": 0, "sync_mode": None}})
    assert found.group().factor == 7 and found.group("hot").factor == 5
    assert not found.group("hot").sync and found.group("hot").ack_timeout_s == 5.0
    assert settings(groups={"hot": {"sync_mode": True}}, sync_mode=False).group("hot").sync


def test_peers_are_names() -> None:
    assert read_peers(["a", "b", "a"]) == read_peers({"a": "10.0.0.1:7100", "b": None}) == ("a", "b")
    assert read_peers(None) == read_peers({}) == ()


# ---------------------------------------------------------------- a queue


@pytest.mark.parametrize("key", ["heartbeat_timeout", "election_timeout", "snapshot_interval", "snapshot_threshold"])
def test_times_of_raft_belong_to_the_group(key: str) -> None:
    found = problems(f"queues=[{{name: q, replication: {{enabled: true, {key}: 5}}}}]")
    text = found[f"queues[0].replication.{key}"]
    assert ("cluster.raft.groups.<group>" if "timeout" in key else "has no effect") in text


@pytest.mark.parametrize(("given", "path", "part"), [
    ({"type": "ephemeral", "replication": {"enabled": True}}, "replication.enabled", "in one node's memory"),
    ({"replication": {"group": "a b"}}, "replication.group", "letters, digits"),
    ({"replication": {"mode": "Sync"}}, "replication.mode", "nearest is sync"),
    ({"replication": {"replication_factor": 11}}, "replication.replication_factor", "from 0 to 10"),
    ({"replication": {"replication_factor": 3, "min_in_sync_replicas": 4}}, "replication.min_in_sync_replicas",
     "4 is more than replication_factor, 3"),
    ({"replication": {"factor": 3}}, "replication.factor", "there is no such key"),
    ({"replication": True}, "replication", "a section is expected"),
])
def test_what_a_queue_cannot_say(given: dict[str, Any], path: str, part: str) -> None:
    with pytest.raises(SpecError) as caught:
        queue(**given)
    assert caught.value.path == path and part in caught.value.text


def test_a_queue_has_what_it_does_not_say_from_its_group() -> None:
    found = settings(groups={"hot": {"replication_factor": 5, "min_in_sync_replicas": 3, "sync_mode": False,
                                     "ack_timeout": "1s"}})
    assert replication_of(found, queue(replication={"enabled": True})) == Replication("default", 0, 3, 2, True, 5.0)
    assert replication_of(found, queue(replication={"enabled": True, "group": "hot"})) == Replication(
        "hot", 0, 5, 3, False, 1.0)
    assert replication_of(found, queue(replication={
        "enabled": True, "group": "hot", "replication_factor": 5, "mode": "sync", "min_in_sync_replicas": 4,
        "ack_timeout": "2s"})) == Replication("hot", 0, 5, 4, True, 2.0)
    assert replication_of(found, queue(replication={"enabled": True, "mode": "async"})) == Replication(
        "default", 0, 3, 2, False, 5.0)
    assert replication_of(found, queue(type="stream", replication={"enabled": True})) is not None
    for spec in (queue(), queue(replication={"enabled": False}), queue(replication={"group": "hot"})):
        assert replication_of(found, spec) is None


def test_a_queue_of_another_size_is_in_a_group_of_that_size() -> None:
    found = settings(groups={"hot": {}, "default": {"ack_timeout": "7s"}})
    for size, least in ((1, 1), (2, 2), (5, 2)):
        assert replication_of(found, queue(replication={"enabled": True, "replication_factor": size})) == Replication(
            sized_group(size), 0, size, least, True, 7.0)
    assert found.group("default-r10").factor == 10
    with pytest.raises(SpecError, match=r"5 replicas, and the replication group hot has 3: .*groups\.hot\.replication"):
        replication_of(found, queue(replication={"enabled": True, "group": "hot", "replication_factor": 5}))
    with pytest.raises(SpecError, match="4 is more than the replicas of group default, 3"):
        replication_of(found, queue(replication={"enabled": True, "min_in_sync_replicas": 4}))


@pytest.mark.parametrize(("enabled", "clustered", "key"), [
    (False, True, "set cluster.raft.enabled to true"),
    (True, False, "set cluster.enabled and cluster.raft.enabled to true"),
    (False, False, "set cluster.enabled and cluster.raft.enabled to true")])
def test_without_raft_a_queue_that_asks_is_refused(enabled: bool, clustered: bool, key: str) -> None:
    found = ReplicationSettings(raft(enabled=enabled, queues=["*"]), clustered)
    with pytest.raises(SpecError, match=key):
        replication_of(found, queue(replication={"enabled": True}))
    assert replication_of(found, queue()) is None
    assert replication_of(found, *amqp(**{"x-queue-type": b"quorum"})) is None  # as ever


def test_an_unknown_group_is_made_or_refused() -> None:
    asks = queue(replication={"enabled": True, "group": "new"})
    made = replication_of(settings(), asks)
    assert made is not None and made.group == "new"
    with pytest.raises(SpecError, match="no replication group new, only cold, default: add it"):
        replication_of(settings(auto_provision_groups=False, groups={"cold": {}}), asks)
    with pytest.raises(SpecError, match=r"new is off: set cluster\.raft\.groups\.new\.enabled: true"):
        replication_of(settings(groups={"new": {"enabled": False}}), asks)
    default = replication_of(settings(auto_provision_groups=False), queue(replication={"enabled": True}))
    assert default is not None and default.group == "default"


def test_the_configuration_says_which_queue_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("queues:\n  - name: a\n  - name: b\n    replication:\n      enabled: true\n")
    found = problems(file=file)
    assert list(found) == ["queues[1].replication.enabled"]
    assert "cluster.enabled" in found["queues[1].replication.enabled"] and "c.yaml:5" in str(found)
    assert load(file, None, ON)[0].queues[1].replication.enabled


# ---------------------------------------------------------------- AMQP


def amqp(name: bytes = b"q", *, durable: bool = True, exclusive: bool = False, auto_delete: bool = False,
         **arguments: Any) -> tuple[QueueSpec, Declared]:
    declared = Declared(b"/", name, durable, exclusive, auto_delete, arguments)
    return spec_of(declared, read_arguments(declared)), declared


def test_quorum_queues_are_replicated_and_others_are_not() -> None:
    found = settings()
    assert replication_of(found, *amqp(**{"x-queue-type": "quorum"})) == Replication("default", 0, 3, 2, True, 5.0)
    assert replication_of(found, *amqp(**{"x-queue-type": b"classic"})) is None
    assert replication_of(found, *amqp(**{"x-queue-type": b"stream"})) is None
    with pytest.raises(SpecError, match=r"amq\.gen-x cannot be replicated: the broker gave it its name"):
        replication_of(found, *amqp(b"amq.gen-x", **{"x-queue-type": b"quorum"}))


@pytest.mark.parametrize(("how", "part"), [
    ({"exclusive": True}, "it is exclusive"), ({"auto_delete": True}, "it is auto-delete"),
    ({"durable": False}, "it is not durable")])
def test_a_queue_that_ends_with_its_clients_has_no_replicas(how: dict[str, bool], part: str) -> None:
    spec, declared = amqp(**how)
    asks = msgspec.structs.replace(declared, arguments={"x-queue-type": b"quorum"})
    with pytest.raises(SpecError, match=part) as caught:
        replication_of(settings(), spec, asks)
    assert caught.value.path == "x-queue-type"


def test_a_quorum_queue_of_another_size() -> None:
    quorum = {"x-queue-type": b"quorum"}
    found = settings()
    for size, group in ((3, "default"), (5, "default-r5"), (1, "default-r1")):
        answer = replication_of(found, *amqp(**quorum, **{"x-quorum-initial-group-size": size}))
        assert answer is not None and (answer.group, answer.factor) == (group, size)
    for size in (0, 11):
        with pytest.raises(SpecError, match=f"{size} replicas are not possible: from 1 to 10"):
            replication_of(found, *amqp(**quorum, **{"x-quorum-initial-group-size": size}))
    named = settings(queues=[{"group": "hot"}])
    answer = replication_of(named, *amqp(**quorum, **{"x-quorum-initial-group-size": 3}))
    assert answer is not None and answer.group == "hot"
    with pytest.raises(SpecError, match="5 replicas, and the replication group hot has 3"):
        replication_of(named, *amqp(**quorum, **{"x-quorum-initial-group-size": 5}))


# ---------------------------------------------------------------- patterns


@pytest.mark.parametrize(("name", "namespace", "group"), [
    ("orders", "/", "hot"), ("order-7", "shop", "hot"), ("audit.1", "/", "cold"), ("audit.12", "/", None),
    ("audit-1", "/", None), ("any", "shop", "default"), ("any", "/", None), ("Orders", "/", None)])
def test_patterns_by_name_and_namespace(name: str, namespace: str, group: str | None) -> None:
    found = settings(queues=[{"pattern": "order*", "group": "hot"}, {"pattern": "audit.?", "group": "cold"},
                             {"namespace": "shop"}])
    answer = replication_of(found, queue(name, namespace=namespace))
    assert (answer.group if answer is not None else None) == group


def test_patterns_pass_over_what_can_have_no_replicas_or_wants_none() -> None:
    found = settings(queues=["*"])
    assert replication_of(found, queue()) is not None and replication_of(found, *amqp()) is not None
    assert replication_of(found, *amqp(**{"x-queue-type": b"stream"})) is not None
    for passed in (amqp(exclusive=True), amqp(auto_delete=True), amqp(durable=False), amqp(b"amq.gen-x"),
                   (queue(type="ephemeral"), None), (queue(replication={"enabled": False}), None),
                   (QueueSpec(name="$moving-1"), None)):
        assert replication_of(found, *passed) is None


def test_a_queue_that_names_a_group_is_not_in_that_of_the_pattern() -> None:
    found = settings(queues=[{"group": "hot"}])
    for given, group in (({"enabled": True, "group": "own"}, "own"), ({"group": "own"}, "own"),
                         ({"enabled": True}, "hot"), ({"mode": "async"}, "hot")):
        answer = replication_of(found, queue(replication=given))
        assert answer is not None and answer.group == group


def test_shards_divide_the_queues_of_a_group() -> None:
    found = settings(groups={"default": {"shards": 4}}, queues=["*"])
    names = [f"q{at}" for at in range(64)]
    shards = [answer.shard for name in names if (answer := replication_of(found, queue(name))) is not None]
    assert len(shards) == 64 and set(shards) == {0, 1, 2, 3}
    assert shards[:8] == [3, 1, 3, 1, 2, 0, 2, 0]  # stays as it is: it says where the data are


# ---------------------------------------------------------------- members


def test_a_group_has_as_many_members_as_there_are_nodes_for_it() -> None:
    assert group_members(3, 2, ["c", "a", "b", "d"]) == ["c", "a", "b"]
    assert group_members(3, 2, ["c", "a"]) == ["c", "a"]
    assert group_members(3, 2, ["c", "a", "b", "d"], {"a", "b", "d"}) == ["a", "b", "d"]
    assert group_members(1, 1, ["a", "b"]) == ["a"]


def test_a_node_that_is_alone_has_the_one_replica() -> None:
    assert group_members(3, 2, ["a"]) == ["a"]
    assert alone_warning("hot", 3, ["a"]).startswith("the replication group hot has one replica of 3, at a:")
    assert alone_warning("hot", 1, ["a"]) == alone_warning("hot", 3, ["a", "b"]) == ""


@pytest.mark.parametrize(("serving", "peers", "away", "told"), [
    (["a"], (), ["b", "c"], "serving: a; away: b, c"),
    (["a", "b"], ("b", "c"), ["c"], "serving: b; away: c; not among the peers of the group: a"),
    (["a"], ("b", "c"), (), "serving: none; not among the peers of the group: a"),
    ([], (), (), "serving: none")])
def test_too_few_nodes_are_named(serving: list[str], peers: tuple[str, ...], away: list[str], told: str) -> None:
    with pytest.raises(SpecError) as caught:
        group_members(3, 2, serving, peers, away)
    assert told in caught.value.text and "2 replicas must be in sync" in caught.value.text


# ---------------------------------------------------------------- stored and declared again


GIVEN = {"name": "q", "replication": {"enabled": True, "group": "hot", "mode": "async", "ack_timeout": "2s"}}


@pytest.mark.parametrize("given", [{"name": "q"}, GIVEN, {"name": "q", "replication": {"enabled": False}}])
def test_a_queue_is_read_back_as_it_was_written(given: dict[str, Any]) -> None:
    spec = read_spec(given)
    assert write_spec(spec) == given and read_spec(yaml.safe_load(yaml.safe_dump(write_spec(spec)))) == spec
    record = QueueRecord(spec, [LogRecord(1, 0)], identity=7)
    assert stored_queue_of(record.encoded())[1] == spec
    defined = QueueDefinition(7, spec, None)
    assert queue_of(b"/", b"q", encode_queue(defined)) == defined


def test_what_an_earlier_version_has_written_is_read_and_reads_what_says_nothing_new() -> None:
    spec = QueueSpec(name="q", partitions=2)
    former = msgspec.json.decode(msgspec.json.encode(spec))
    del former["replication"]
    logs = [[1, 0], [2, 0]]
    assert stored_queue_of(msgspec.msgpack.encode([former, logs]))[1] == spec
    assert msgspec.msgpack.decode(QueueRecord(spec, [LogRecord(1, 0), LogRecord(2, 0)]).encoded())[0] == former
    assert msgspec.json.decode(encode_queue(QueueDefinition(7, spec, None)))["spec"] == former
    assert queue_of(b"/", b"q", msgspec.json.encode({"id": 7, "spec": former})).spec == spec


def test_declaring_a_configured_queue_as_quorum_is_equal_if_it_is_replicated() -> None:
    world = World()
    for name, replication in (("q", QueueReplication(enabled=True)), ("plain", QueueReplication())):
        world.manager.declare(QueueSpec(name=name, replication=replication))
    for arguments in ({}, {"queue_type": "quorum"}, {"queue_type": "classic"}):
        world.declare("q", durable=True, **arguments)
    with pytest.raises(AmqpRefused, match="inequivalent arg 'x-queue-type'"):
        world.declare("plain", durable=True, queue_type="quorum")
    with pytest.raises(AmqpRefused, match="inequivalent arg 'x-queue-type'"):
        world.declare("q", durable=True, queue_type="stream")


def test_a_group_is_shown_as_it_is_written() -> None:
    assert read_groups({"hot": RaftGroup(shards=2)}) == {"hot": RaftGroup(shards=2)}
