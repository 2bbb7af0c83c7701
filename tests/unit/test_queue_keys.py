"""The entries of `queues:`: every key with its default, and for each wrong one a sentence that names it and helps."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluxmq._core.errors import FluxError
from fluxmq.app.config import load
from fluxmq.model.entry_keys import QUEUE_KEYS
from fluxmq.model.queues import QueueSpec, SpecError, filter_problem, read_spec, write_spec


@pytest.mark.parametrize(("given", "key", "said"), [
    ({"type": "clasic"}, "type", "one of classic, stream, ephemeral; the nearest is classic"),
    ({"limits": {"max_depth": "lots"}}, "limits.max_depth", "a whole number"),
    ({"limits": {"max_depth": -1}}, "limits.max_depth", "a whole number"),
    ({"limits": {"max_depth": 10**16}}, "limits.max_depth", "a whole number"),
    ({"limits": {"max_bytes": "10 lots"}}, "limits.max_bytes", "a size such as 64KiB"),
    ({"limits": {"max_bytes": 10**30}}, "limits.max_bytes", "a size such as 64KiB"),
    ({"limits": {"max_message_size": "8GiB"}}, "limits.max_message_size", "a size such as 64KiB"),
    ({"limits": {"message_ttl": "-1s"}}, "limits.message_ttl", "a duration such as 90s"),
    ({"limits": {"message_ttl": 1e300}}, "limits.message_ttl", "a duration such as 90s"),
    ({"limits": {"depth": 5}}, "limits.depth", "did you mean max_depth?"),
    ({"limits": 5}, "limits", "a section is expected, with keys such as max_message_size"),
    ({"limts": {}}, "limts", "did you mean limits?"),
    ({"colour": "red"}, "colour", "there are name, type, topics"),
    ({"name": ""}, "name", "is empty"),
    ({"name": "a/b"}, "name", "may not contain '/'"),
    ({"name": "../../etc"}, "name", "may not contain '/'"),
    ({"name": "$a"}, "name", "may not begin with '$'"),
    ({"name": "a\0b"}, "name", "cannot be printed"),
    ({"name": "n" * 201}, "name", "longer than 200 bytes"),
    ({"name": 5}, "name", "text, not empty"),
    ({"partitions": 0}, "partitions", "from 1 to 1024"),
    ({"partitions": True}, "partitions", "from 1 to 1024"),
    ({"max_priority": 256}, "max_priority", "from 0 to 255"),
    ({"type": "stream", "max_priority": 1}, "max_priority", "has no priorities"),
    ({"retention": {"max_age": "1h"}}, "retention", "set limits and overflow"),
    ({"topics": "x/#"}, "topics", "a list of texts"),
    ({"topics": ["ok", "x/#/y"]}, "topics[1]", "not the whole last level"),
    ({"topics": ["x/a+"]}, "topics[0]", "not a whole level"),
    ({"topics": [""]}, "topics[0]", "is empty"),
    ({"topics": ["$share/g/x"]}, "topics[0]", "its consumers share it"),
    ({"topics": ["$queue/#"]}, "topics[0]", "its own address, $queue/q"),
    ({"topics": ["$queue/+/x"]}, "topics[0]", "its own address, $queue/q"),
    ({"topics": ["$queue/other"]}, "topics[0]", "its own address, $queue/q"),
    ({"capture": "sometimes"}, "capture", "one of on, confirmed"),
    ({"overflow": "drop-tail"}, "overflow", "one of reject-publish, drop-head"),
    ({"expires_after": "soon"}, "expires_after", "a duration"),
    ({"retry": {"multiplier": 0.5}}, "retry.multiplier", "a number from 1 to 100"),
    ({"retry": {"initial_backoff": "10m"}}, "retry.max_backoff", "less than initial_backoff"),
    ({"dlq": {"enabled": "maybe"}}, "dlq.enabled", "true or false"),
    ({"dlq": {"topic": "$dlq/q"}}, "dlq.topic", "the name of another queue"),
    ({"dlq": {"topic": "q"}}, "dlq.topic", "is the queue itself"),
    ({"reserved": True}, "reserved", "no queue is special"),
    ({"ack_durability": "fsync"}, "ack_durability", "storage.session_durability"),
    ({"primary_group": "g"}, "primary_group", "queue groups"),
    ({"replication": {"election_timeout": "3s"}}, "replication.election_timeout", "belongs to the queue's group")])
def test_a_wrong_key_is_named(given: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(SpecError) as found:
        read_spec({"name": "q"} | given)
    assert found.value.path == key
    assert said in found.value.text
    assert str(found.value) == f"{key}: {found.value.text}"


@pytest.mark.parametrize(("text", "said"), [
    ("queues:\n  - {name: a}\n  - {name: b, type: strem}\n", "queues[1].type: 'strem' cannot be used; allowed: one of"),
    ("queues:\n  - {name: a}\n  - {name: a}\n", "queues[1].name: 'a' is named twice"),
    ("queues:\n  - {type: stream}\n", "queues[0].name: is needed"),
    ("queues:\n  - orders\n", "queues[0]: a section is expected, with keys such as name"),
    ("queues: {name: a}\n", "a list of queues, such as [{name: orders}]"),
    ("queue_manager: {auto_create: yes please}\n", "one of \"\", classic, stream, ephemeral"),
    ("queue_manager: {metrics_queues: -1}\n", "a whole number from 0 to 100000"),
    ("queue_manager: {segment_size: 1KiB}\n", "a size such as 64KiB or 65536, from 1MiB to 1GiB"),
    ("queue_manager: {capture_workers: 4}\n", "captures are appended where they arrive")])
def test_the_file_says_which_entry_and_where(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "fluxmq.yaml"
    file.write_text(text)
    with pytest.raises(FluxError) as found:
        load(str(file), None, [])
    assert said in str(found.value)
    assert f"{file}:" in str(found.value)


def test_every_key_can_be_written_and_read_again() -> None:
    given: dict[str, Any] = {
        "name": "q", "namespace": "tenant", "type": "classic", "topics": ["a/+", "$queue/q/#", "#"], "partitions": 3,
        "max_priority": 2,
        "capture": "confirmed", "overflow": "drop-head", "expires_after": "2m",
        "limits": {"max_message_size": "1KiB", "max_depth": 5, "max_bytes": "1MiB", "message_ttl": "1h"},
        "retry": {"max_retries": 3, "initial_backoff": "1s500ms", "max_backoff": "1m", "multiplier": 3,
                  "visibility_timeout": "5s"},
        "dlq": {"enabled": False, "topic": "lost"},
        "replication": {"enabled": True, "group": "hot", "replication_factor": 5, "mode": "async",
                        "min_in_sync_replicas": 3, "ack_timeout": "2s"}}
    stream: dict[str, Any] = {"name": "s", "type": "stream", "retention": {
        "max_age": "1d", "max_length_bytes": "1GiB", "max_length_messages": 7}}
    for one in (given, stream):
        spec = read_spec(one)
        assert read_spec(write_spec(spec)) == spec
    written = {key for one in (given, stream) for name, value in one.items()
               for key in ([f"{name}.{below}" for below in value] if isinstance(value, dict) else [name])}
    assert written == {path.removeprefix("queues[].") for path in QUEUE_KEYS}


def test_every_key_is_described() -> None:
    for path, key in QUEUE_KEYS.items():
        assert key.description.endswith("."), path
    assert write_spec(QueueSpec(name="q")) == {"name": "q"}


@pytest.mark.parametrize("filter_", ["#", "+", "a/#", "+/b/#", "/", "$SYS/#", "$queue/q", "$queue/q/#", "a b/ü"])
def test_filters_that_can_be_captured(filter_: str) -> None:
    assert filter_problem(filter_, "q") == ""
