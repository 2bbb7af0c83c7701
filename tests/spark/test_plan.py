"""What is played, by whom and where: with pyarrow and with Spark the same."""
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from kit.story import Story
from oracle.mqtt import PUBLISH, Reader

from fluxmq.record.reading import open_recording
from fluxmq.spark.player.operations import (
    ACK,
    KINDS,
    METHOD,
    OPERATIONS,
    SEND,
    SETTLE,
    copy_of_filter,
    copy_of_topic,
    publish_detail,
    read_connect,
    wire_properties,
)
from fluxmq.spark.replay.plan import ConnectionSeen, PlanError, Survey, plain_plan, plain_survey, plan_recording

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]


def mixed() -> Story:
    """Clients of every kind that the plan tells apart."""
    story = Story()
    story.there("early", ("t/#", 1))
    for number in range(6):
        story.connect(f"client-{number}")
        story.subscribe(f"client-{number}", ("t/#", 1))
    for number in range(30):
        story.publish(f"client-{number % 6}", f"t/{number}", number % 3, payload=b"x" * number if number % 2 else None)
    prompt, late, crossed, silent = ([story.delivered(f"client-{number}", "t/1", 1, at=1 + number / 10)
                                      for _ in range(3)] for number in range(4))
    for number, order in ((0, prompt), (1, late), (2, [crossed[1], crossed[0]])):
        for index, delivery in enumerate(order):
            story.acknowledge(f"client-{number}", delivery, at=(5.0 if number == 1 else 1.5) + index / 100)
    assert silent
    story.publish("client-5", "t/again", 1, at=6.0)
    story.rows[-1]["dup"] = True
    story.connect("client-5")
    story.disconnect("client-5")
    story.lost("client-4")
    for direction, kind in (("in", "connection.open"), (None, "accepted"), ("in", "queue.declare"),
                            ("out", "queue.declare-ok"), ("in", "basic.publish"), ("out", "basic.deliver"),
                            ("in", "basic.ack"), ("in", "heartbeat"), (None, "closed")):
        story.rows.append({
            "seq": len(story.rows), "time": story.rows[-1]["time"], "connection": 90, "protocol": "amqp091",
            "client_id": "amqp091-90", "direction": direction, "kind": kind, "version": None if "open" in kind else 91,
            "channel": 1, "exchange": "logs", "packet_id": 7, "topic": "key" if kind == "basic.publish" else None})
    return story


def test_the_survey_finds_who_acknowledges_by_hand(tmp_path: Path) -> None:
    story = mixed()
    survey = plain_survey(open_recording(story.write(tmp_path / "r")))
    wanted = {"client-1": 3, "client-2": 4, "client-3": 5}          # late, crossed, never; 1 is "early"
    assert survey.manual == sorted(wanted.values())
    assert survey.repeated == 1
    plan = plan_recording(survey, copies=2, partitions=3)
    assert plan.not_replayed == {"repeated publishes": 2}
    assert plan.clients == 16 and len(set(plan.places.values())) == 3
    assert survey.first == story.rows[1]["time"] and survey.published == story.rows[13]["time"]


def test_a_partition_has_its_clients_whole_and_in_order(tmp_path: Path) -> None:
    plan, parts = plain_plan(open_recording(mixed().write(tmp_path / "r")), copies=3, partitions=2)
    played = [[row for batch in part for row in batch.to_pylist()] for part in parts]
    assert sum(map(len, played)) >= plan.operations
    seen: dict[int, int] = {}
    for place, rows in enumerate(played):
        assert [(row["time"], row["seq"], row["copy"]) for row in rows] == sorted(
            (row["time"], row["seq"], row["copy"]) for row in rows)
        for row in rows:
            assert seen.setdefault(row["client_number"], place) == place
    every = [row for rows in played for row in rows]
    assert {row["client"] for row in every if row["copy"] == 2} == {f"client-{n}~2" for n in range(6)} | {
        "early~2", "amqp091-90~2"}
    assert {row["topic"][:3] for row in every if row["copy"] == 1 and row["topic"]} == {"~1/", "key"}
    theirs = [row for row in every if row["client"] == "amqp091-90~1"]
    assert [row["method"] for row in theirs] == [
        "connection.open", "accepted", "queue.declare", "queue.declare-ok", "basic.publish", "basic.ack", "closed"]
    assert {(row["channel"], row["exchange"], row["tag"]) for row in theirs} == {(1, "logs", 7)}
    assert {row["method"] for row in every if row["client"] != theirs[0]["client"] and "amqp" not in row["client"]} == {
        None}
    ranks = [(row["client"], row["rank"]) for row in every if row["kind"] == ACK and row["copy"] == 0]
    assert sorted(ranks, key=lambda one: one[0]) == [
        ("client-1", 0), ("client-1", 1), ("client-1", 2), ("client-2", 1), ("client-2", 0)]


def test_spark_plans_the_same(tmp_path: Path, spark: SparkSession) -> None:
    from fluxmq.spark.replay.plan_spark import recorded_rows, spark_operations, spark_survey

    recording = open_recording(mixed().write(tmp_path / "r", rows_per_part=20))
    rows = recorded_rows(spark, recording)
    survey = spark_survey(rows)
    plain = plain_survey(recording)

    def by_number(one: Survey) -> list[ConnectionSeen]:
        return sorted(one.connections, key=lambda seen: seen.number)

    assert by_number(survey) == by_number(plain)
    assert [getattr(survey, name) for name in ("manual", "first", "last", "repeated", "published", "silent")] == [
        getattr(plain, name) for name in ("manual", "first", "last", "repeated", "published", "silent")]
    plan, parts = plain_plan(recording, copies=2, partitions=2)
    assert plan_recording(survey, copies=2, partitions=2).places == plan.places
    operations = spark_operations(spark, rows, plan)
    assert operations.columns == OPERATIONS.names
    found: list[Rows] = [[] for _ in range(2)]
    for row in operations.selectExpr("spark_partition_id() as place", "*").toArrow().to_pylist():
        found[row.pop("place")].append(row)
    assert found == [[row for batch in part for row in batch.to_pylist()] for part in parts]


def test_our_hash_is_sparks(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    from fluxmq.spark.replay.plan_spark import spark_hash

    values = [0, 1, 2, 41, 65535, 2**31 - 1]
    table = spark.createDataFrame([(value,) for value in values], "value int")
    assert [row[0] for row in table.select(F.hash("value")).collect()] == [spark_hash(value) for value in values]


def test_nothing_to_play_is_one_sentence(tmp_path: Path) -> None:
    story = Story()
    story.connect("one")
    story.rows[0] |= {"kind": "heartbeat", "protocol": "amqp091"}
    with pytest.raises(PlanError, match="holds nothing of clients that could be replayed"):
        plain_plan(open_recording(story.write(tmp_path / "r")))


def test_a_client_that_nobody_named_is_played(tmp_path: Path) -> None:
    """A server gave it its name, and the row of its CONNECT does not know it yet; or nobody ever says it."""
    story = Story()
    story.connect("given")
    story.rows[-1]["client_id"] = None
    story.publish("given", "t")
    story.connect("nobody")
    story.rows[-1]["client_id"] = None
    _, (part,) = plain_plan(open_recording(story.write(tmp_path / "r")))
    assert [row["client"] for batch in part for row in batch.to_pylist()] == ["given", "given", "connection-2"]


@pytest.mark.parametrize(("name", "copied"), [
    ("a/b", "~3/a/b"), ("#", "~3/#"), ("$share/g/a/+", "$share/g/~3/a/+"), ("$queue/jobs", "$queue/jobs"),
    ("$share/g/$queue/jobs", "$share/g/$queue/jobs"), ("$SYS/#", "$SYS/#")])
def test_filters_of_a_copy(name: str, copied: str) -> None:
    assert copy_of_filter(name, 3) == copied and copy_of_filter(name, 0) == name


def test_topics_of_a_copy() -> None:
    assert [copy_of_topic(name, 1) for name in ("a", "/a", "$queue/q")] == ["~1/a", "~1//a", "$queue/q"]


def test_properties_are_sent_as_recorded() -> None:
    text = ('{"user_property": [["a", "1"], ["a", "2"]], "response_topic": "r", "correlation_data": "AAE=", '
            '"topic_alias": 3, "message_expiry_interval": 9}')
    wire = wire_properties(text, 2)
    assert Reader(bytes([len(wire)]) + wire).properties(PUBLISH) == [
        ("user_property", ("a", "1")), ("user_property", ("a", "2")), ("response_topic", "~2/r"),
        ("correlation_data", b"\x00\x01"), ("message_expiry_interval", 9)]
    assert publish_detail(text) == '{"message_expiry_s": 9}' and publish_detail('{"content_type": "x"}') is None


def test_a_connect_is_read_back() -> None:
    asked = read_connect(
        '{"clean_start": false, "keep_alive_s": 7, "will": {"topic": "w", "qos": 1, "retain": true, "size": 3, '
        '"payload": "AAEC", "properties": {"will_delay_interval": 5, "content_type": "c"}}}',
        '{"session_expiry_interval": 60, "receive_maximum": 10, "authentication_method": "x"}', 5, 1)
    assert (asked.clean_start, asked.keep_alive_s, asked.session_expiry_s) == (False, 7, 60)
    assert asked.properties.receive_maximum == 10 and asked.properties.authentication_method is None
    will = asked.will
    assert will is not None
    assert (will.topic, will.qos, will.retain, will.payload, will.delay_s) == ("~1/w", 1, True, b"\x00\x01\x02", 5)
    assert will.properties.content_type == "c" and will.properties.will_delay_interval is None


def test_kinds_are_numbered_once() -> None:
    mqtt = {kind: number for kind, number in KINDS.items() if "." not in kind}
    theirs = set(KINDS.values()) - set(mqtt.values())
    assert len(set(mqtt.values())) == len(mqtt) - 1 and theirs == {METHOD, SEND, SETTLE}
    assert pa.types.is_int8(OPERATIONS.field("kind").type)
