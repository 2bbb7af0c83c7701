"""What each publish of a result brings to each session: must, may, must not. Computed by joins, not by a broker.

The truth table, and this module owns it. A publish was sent at s and acknowledged at a: the broker took it somewhere in
[s, a]. A subscription was made somewhere in [b, B] and ended in [e, E] (sessions.py says when that is). All four
intervals include their ends; what was never answered ends NEVER.

    a < b                                    not yet                                   must not
    a >= b and s <= B                        they overlap                              may
    s > B and a < e                          it held for as long as the publish took   owed
    a >= e and s <= E                        they overlap                              may
    s > E                                    no more                                   must not

Instants that are equal tell no order, so they overlap.

Owed is **must** when all of these hold, else it is may:

    the publish        has QoS 1 or 2, was accepted (reason below 0x80) and does not expire
    the subscription   grants QoS 1 or 2 in every piece that the publish can have met, and No Local is not for this one
    the session        could still take it: it was connected from a on for the settling time, or until the run ended,
                       or it did get a later message of the same publisher, connection, topic and QoS [MQTT-4.6.0]

Else and beside that:

    one session        however many of its filters match: one delivery, QoS between the highest of what is owed and the
                       highest of what matches, No Local or not [MQTT-3.3.4-2]
    retained           a SUBSCRIBE that may come after the publish and before the one that replaced it: one more, may;
                       of a cluster, any SUBSCRIBE that may come after the publish
    $share             one member: must when it is owed to one member, every other member that it may have gone to
                       grants QoS 1 or 2, and all of them could still take it
    $queue             one consumer at least of each group: must when the group was there before s, nobody of it settles
                       by hand, and the last of them was connected, from a and from the others' end on, for the settling
                       time. A consumer gets what the queue keeps, so older publishes may come; nothing after UNSUBACK
    will               a connection that did not end with a clean DISCONNECT: may, from its CONNECT on
    QoS 0              may; owed to a session that is connected, and not there: counted as lost
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from fluxmq.spark.verify.matching import matches
from fluxmq.spark.verify.sessions import DETAIL, NEVER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["KEY", "expected", "group_expected", "meetings", "met_chains", "publishes", "queue_chances"]

# Identifies a publish: publisher is its client's number.
KEY = ["run", "publisher", "publisher_op"]
COMMANDS = ("ack", "nack", "reject", "extend", "commit")


def publishes(events: DataFrame, linked: DataFrame, several: bool = False) -> DataFrame:
    """What was published and can be told apart: KEY and p_connection, p_client, p_topic, p_qos, p_retain, p_sent,
    p_acked, p_sure (accepted, QoS 1 or 2, does not expire), p_size (bytes), p_will, p_again (of QoS 1, and its
    connection ended before it was acknowledged: the client may have sent it again, so it may come again), p_until (a
    SUBSCRIBE begun after that cannot get it as a retained message; -1: nobody can).

    A publish without a payload has no trace, so nothing is expected of it; retained, it removes what is retained.
    linked: sessions.connections(). several: of a cluster's nodes; then p_until is NEVER for what is retained.
    """
    expires = F.get_json_object("detail", "$.message_expiry_s").isNotNull()
    order = F.regexp_extract("topic", r"(?s)^\$queue/[^/]+/\$(" + "|".join(COMMANDS) + ")$", 1) != ""
    sent = events.where((F.col("event") == "publish") & ~order).select(
        "run", F.col("client_number").alias("publisher"), F.col("op").alias("publisher_op"),
        F.col("connection").alias("p_connection"), F.col("client").alias("p_client"), F.col("topic").alias("p_topic"),
        F.col("qos").cast("int").alias("p_qos"), F.coalesce("retain", F.lit(False)).alias("p_retain"),
        F.col("sent").alias("p_sent"), F.coalesce("acked", F.lit(NEVER)).alias("p_acked"),
        ((F.col("qos") >= 1) & F.col("acked").isNotNull() & F.coalesce(F.col("reason") < 128, F.lit(True))
         & ~F.coalesce(expires, F.lit(False))).alias("p_sure"),
        F.lit(False).alias("p_will"), (F.coalesce("size", F.lit(1)) == 0).alias("empty"),
        F.col("size").alias("p_size"))
    over = linked.where(F.col("end_from") < NEVER).select(
        "run", F.col("client_number").alias("publisher"), F.col("connection").alias("p_connection"),
        F.col("end_from").alias("over"))
    sent = sent.join(F.broadcast(over), ["run", "publisher", "p_connection"], "left").withColumn(
        "p_again", F.coalesce((F.col("p_qos") == 1) & (F.col("p_acked") >= F.col("over")), F.lit(False))).drop("over")
    will = F.from_json("detail", DETAIL)["will"]
    ended_well = linked.where("clean").select("run", F.col("client_number").alias("publisher"),
                                              F.col("connection").alias("p_connection"))
    wills = events.where((F.col("event") == "connect") & will.isNotNull()).select(
        "run", F.col("client_number").alias("publisher"), F.col("op").alias("publisher_op"),
        F.col("connection").alias("p_connection"), F.col("client").alias("p_client"), will["topic"].alias("p_topic"),
        F.coalesce(will["qos"], F.lit(0)).alias("p_qos"), F.coalesce(will["retain"], F.lit(False)).alias("p_retain"),
        F.col("sent").alias("p_sent"), F.lit(NEVER).alias("p_acked"), F.lit(False).alias("p_sure"),
        F.lit(True).alias("p_will"), F.lit(False).alias("empty"), F.lit(False).alias("p_again"),
        F.when(will["size"] > 0, will["size"]).alias("p_size"))
    wills = wills.join(ended_well, ["run", "publisher", "p_connection"], "left_anti")
    return _with_replacement(sent.unionByName(wills), several)


def _with_replacement(sent: DataFrame, several: bool) -> DataFrame:
    """Adds p_until: until when a publish can be the retained message. A later publish certainly replaces it if it was
    sent after this one was acknowledged; from the later one's acknowledgement on. In a cluster each node acknowledges
    what it has on its own disk, and the others get it afterwards: then no order is certain."""
    # Each retained publish has two rows: one when it was sent, with its acknowledgement, and a query when it was
    # acknowledged. Queries are sorted behind what was sent at the same instant, which is not later.
    retained = sent.where("p_retain and p_topic not like '$queue/%'").select(
        *KEY, "p_topic", "p_sent", "p_acked", F.explode(F.array(F.lit(False), F.lit(True))).alias("asks"))
    at = F.when(F.col("asks"), F.col("p_acked")).otherwise(F.col("p_sent"))
    later = (Window.partitionBy("run", "p_topic").orderBy(at, F.col("asks").cast("int"))
             .rowsBetween(1, Window.unboundedFollowing))
    gone = F.min(F.when(~F.col("asks"), F.col("p_acked"))).over(later)
    until = (retained.withColumn("gone", F.lit(NEVER) if several else F.coalesce(gone, F.lit(NEVER))).where("asks")
             .select(*KEY, F.col("gone").alias("p_until")))
    told = sent.join(until, KEY, "left").where("not empty").drop("empty")
    return told.withColumn("p_until", F.coalesce("p_until", F.lit(-1)))


def meetings(sent: DataFrame, subscribed: DataFrame) -> DataFrame:
    """Each publish with each piece of a subscription that it can have met, or that it can have come to as a retained
    message. sent: publishes(); subscribed: sessions.pieces()."""
    pairs = matches(sent.select("run", F.col("p_topic").alias("topic")).distinct(),
                    subscribed.select("run", "pattern").distinct())
    met = (F.col("p_acked") >= F.col("begin_from")) & (F.col("p_sent") <= F.col("end_to"))
    kept = F.col("retains") & (F.col("begin_to") >= F.col("p_sent")) & (F.col("begin_from") <= F.col("p_until"))
    return (sent.join(pairs.withColumnRenamed("topic", "p_topic"), ["run", "p_topic"])
            .join(subscribed, ["run", "pattern"])
            .where(met | kept | (F.col("kind") == "queue"))
            .withColumns({"met": met & (F.col("kind") != "queue"), "kept": kept,
                          "barred": F.col("no_local") & (F.col("publisher") == F.col("client_number"))}))


def met_chains(met: DataFrame) -> DataFrame:
    """meetings(), one row for each publish and subscription: its pieces put together."""
    granted = F.when(F.col("met"), F.least("p_qos", "granted"))
    may = F.col("met") & ~F.col("barred")
    in_time = (F.col("p_acked") < F.col("sure_to")) | (F.col("sure_to") >= NEVER)
    holds = (F.col("p_sent") > F.col("sure_from")) & in_time
    absent = F.exists("away", lambda gap: (F.col("p_acked") >= gap["since"]) & (F.col("p_sent") <= gap["back"]))
    return met.repartition(*KEY).groupBy(*KEY, "client_number", "session", "chain", "kind", "group").agg(
        F.bool_or(may).alias("may"),
        (F.bool_or(F.col("met") & holds) & ~F.bool_or(F.col("met") & F.col("barred"))).alias("owed"),
        F.min(granted).alias("qos_low"), F.max(granted).alias("qos_high"),
        F.max(F.when(may, granted)).alias("qos_may"),
        F.sum(F.col("kept").cast("int")).alias("kept"), F.bool_or("barred").alias("barred"),
        F.min("begin_from").alias("from"), F.max("end_to").alias("to"),
        F.first("chance").alias("chance"), F.bool_or(absent).alias("absent"),
        F.first("p_sure").alias("p_sure"), F.first("p_acked").alias("p_acked"), F.first("p_sent").alias("p_sent"),
        F.min("sure_from").alias("sure_from"))


def expected(chains: DataFrame) -> tuple[DataFrame, DataFrame]:
    """(by session, by group), of met_chains().

    By session: KEY, client_number, session; plain (one delivery may come), owed (by a plain subscription with QoS 1 or
    2 at both ends), due (owed, and the session could still take it), owed_0 (of QoS 0, while connected), qos_low,
    qos_high (of plain ones), qos_may (of those that may bring it), kept (retained deliveries that may come), groups (of
    `$share`), queues (groups of queues), queue_from, queue_to (deliveries from queues may arrive then; null: none),
    barred (No Local).
    By group: the chains of `$share` and `$queue`.
    """
    plain, share, queue = (F.col("kind") == kind for kind in ("plain", "share", "queue"))
    due = plain & F.col("owed") & F.col("p_sure") & (F.col("qos_low") >= 1)

    def any_of(condition: Column) -> Column:
        return F.coalesce(F.bool_or(condition), F.lit(False))

    by_session = chains.groupBy(*KEY, "client_number", "session").agg(
        any_of(plain & F.col("may")).alias("plain"), any_of(due).alias("owed"),
        any_of(due & (F.col("chance") >= F.col("p_acked"))).alias("due"),
        any_of(plain & F.col("owed") & (F.col("qos_low") == 0) & ~F.col("absent")).alias("owed_0"),
        F.max(F.when(plain & F.col("owed"), F.col("qos_low"))).alias("qos_low"),
        F.max(F.when(plain, F.col("qos_high"))).alias("qos_high"),
        F.max(F.when(plain, F.col("qos_may"))).alias("qos_may"), F.sum("kept").alias("kept"),
        F.collect_set(F.when(share & F.col("may"), F.col("group"))).alias("groups"),
        F.collect_set(F.when(queue, F.col("group"))).alias("queues"),
        F.min(F.when(queue, F.col("from"))).alias("queue_from"), F.max(F.when(queue, F.col("to"))).alias("queue_to"),
        F.bool_or("barred").alias("barred"))
    return by_session, chains.where(share | queue)


def queue_chances(subscribed: DataFrame, linked: DataFrame, settle_ns: int) -> DataFrame:
    """(run, group, group_chance): what was acknowledged by then, a consumer of the queue's group could still take.

    That is the last consumer's last connection, less the settling time, if all others had ended by then: their
    unsettled messages return to the queue, and a consumer must be there to take them. Groups with a member that settles
    by hand are left out. subscribed: sessions.pieces(); linked: sessions.connections().
    """
    person = ["run", "client_number", "session"]
    lives = linked.where("answered").select(*person, "began_to", F.col("end_from").alias("gone"),
                                            F.col("end_to").alias("gone_to"))
    start, end = F.greatest("begin_to", "began_to"), F.least("end_from", "gone")
    held = F.when(start >= NEVER, None).when(end >= NEVER, F.lit(NEVER)).when(end - start >= settle_ns, end - settle_ns)
    windows = (subscribed.where("kind = 'queue'").join(lives, person)
               .select("run", "group", "manual", "gone_to", F.coalesce(held, F.lit(-1)).alias("held")))
    last = F.row_number().over(Window.partitionBy("run", "group").orderBy(F.desc("held"))) == 1
    return (windows.withColumn("last", last).groupBy("run", "group").agg(
        F.max("held").alias("group_chance"), F.bool_or("manual").alias("manual"),
        F.max(F.when(~F.col("last"), F.col("gone_to"))).alias("others"))
        .where("not manual and (others is null or others <= group_chance)").drop("manual", "others"))


def group_expected(by_group: DataFrame, chances: DataFrame) -> DataFrame:
    """(KEY, kind, group, must), of the second of expected() and queue_chances()."""
    chains = by_group.join(F.broadcast(chances), ["run", "group"], "left")
    share = F.col("kind") == "share"
    reached = F.col("may") & ~((F.col("qos_low") >= 1) & (F.col("chance") >= F.col("p_acked")))
    shared = F.bool_or(F.col("owed")) & ~F.bool_or(reached)
    queued = F.bool_or(F.col("p_sent") > F.col("sure_from")) & (F.max("group_chance") >= F.first("p_acked"))
    return chains.groupBy(*KEY, "kind", "group").agg(
        (F.first("p_sure") & F.when(F.first(share), shared).otherwise(F.coalesce(queued, F.lit(False)))).alias("must"))
