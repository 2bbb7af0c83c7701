"""From the events of a result: connections, sessions and the times in which subscriptions hold, as intervals.

A client sees when it asked and when it was answered; what it asked for happened at one instant between the two. So
everything here begins and ends in an interval [from, to], ns since 1970, both ends included; NEVER stands for "not
until the end of the run".

    connection   begins [CONNECT, CONNACK]
                 ends   [DISCONNECT, answered]       the client said so, or [broke, NEVER]: the player broke it
                        [last sign of life, noticed] a connection that broke: the broker was done with it at any instant
                                                     since. Signs of life are a request that was answered, when it was
                                                     sent, and a delivery, when its message was published
                        [CONNECT, CONNACK]           of the same client's next one, when nothing else ended it
                        NEVER                        it stood when the run ended
    session      a connection begins a new one when it asks for a clean start, or the one before may have expired and
                 CONNACK says that there was none. A session that CONNACK denies although it cannot have expired goes on
                 here: what it was owed is missing.
                 ends   with its last connection     expiry 0
                        [that + expiry, NEVER]       otherwise
                        [CONNECT, CONNACK]           of a clean start, if that is earlier
    subscription begins [SUBSCRIBE, SUBACK]
                 ends   [UNSUBSCRIBE, UNSUBACK], or with its session; a SUBSCRIBE of the same filter continues it
                 (a *chain* of *pieces*, each with its own options), a refused one may have ended it

A session is *unknown* when CONNACK said "present" to the first connection of the run: what it was subscribed to before
is not in the result, so nothing may be said against a delivery to it. The same holds after a CONNECT that was never
answered, for it may have taken effect at any time since, and nothing is owed from then on.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from fluxmq.spark.verify.matching import filter_parts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["AMQP", "DETAIL", "NEVER", "connections", "of_mqtt", "pieces", "sessions"]

NEVER = 2**62
SECOND_NS = 1_000_000_000
EXPIRY_NEVER_S = 0xFFFFFFFF
AMQP = 91           # version in the detail of a connect

# What `detail` may say, of all events.
DETAIL = """clean_start boolean, session_present boolean, session_expiry_s bigint, `by` string,
    will struct<topic: string, qos: int, retain: boolean, size: bigint>, no_local boolean,
    retain_handling int, requested_qos int, user_properties array<array<string>>, message_expiry_s bigint"""

PERSON = ["run", "client_number"]


def _never(column: Column | str) -> Column:
    return F.coalesce(F.col(column) if isinstance(column, str) else column, F.lit(NEVER))


def _later(start: Column, seconds: Column) -> Column:
    """start + seconds, or NEVER if either is."""
    return (F.when((start >= NEVER) | (seconds >= EXPIRY_NEVER_S), F.lit(NEVER))
            .otherwise(start + seconds * SECOND_NS))


def of_mqtt(events: DataFrame) -> DataFrame:
    """Without events of AMQP clients and deliveries of their messages to others, for which other rules hold."""
    theirs = F.broadcast(events.where("event = 'connect'").where(
        F.get_json_object("detail", "$.version").cast("int") == AMQP).select("run", "client_number").distinct())
    publishers = theirs.withColumnRenamed("client_number", "publisher")
    return events.join(theirs, ["run", "client_number"], "left_anti").join(
        publishers, ["run", "publisher"], "left_anti")


def connections(events: DataFrame) -> DataFrame:
    """One row per connection that was accepted, or never answered: when it began and ended, and its session's number.

    run, client_number, connection, session, fresh (it began the session), began_from, began_to, end_from, end_to, clean
    (its DISCONNECT was taken, so it has no will), expiry_s, will, clean_start, present, answered, lost_from, lost_to
    (when the session ends for good, as far as this connection and the next know).
    """
    def of(name: str) -> Column:
        return F.col("event") == name

    detail = F.from_json("detail", DETAIL)
    asked = F.struct("sent", "acked", "reason", detail.alias("detail"))
    over = F.struct("sent", "acked", "reason", detail.alias("detail"))
    alive = F.when(~of("delivery") & ~of("disconnect") & ~of("lost-connection") & F.col("acked").isNotNull(),
                   F.col("sent"))
    rows = events.groupBy(*PERSON, "connection").agg(
        F.first(F.when(of("connect"), asked), ignorenulls=True).alias("opened"),
        F.first(F.when(of("disconnect"), over), ignorenulls=True).alias("left"),
        F.first(F.when(of("lost-connection"), over), ignorenulls=True).alias("lost"),
        F.max(alive).alias("alive"))
    rows = rows.where(F.col("opened").isNotNull() & (F.coalesce("opened.reason", F.lit(0)) == 0))
    rows = rows.join(_last_delivered(events, rows.where("lost is not null")), [*PERSON, "connection"], "left")
    order = Window.partitionBy(*PERSON).orderBy("connection")
    began_from, began_to = F.col("opened.sent"), _never("opened.acked")
    next_from, next_to = F.lead(began_from).over(order), F.lead(began_to).over(order)
    broke = F.when(F.col("lost.detail.by") == "client", F.col("lost.sent")).when(
        F.col("lost").isNotNull(), F.least(F.greatest("alive", "heard", began_from), "lost.sent"))
    left_to = F.when(F.col("left").isNotNull(), _never("left.acked"))
    lost_to = F.when(F.col("lost.detail.by") == "client", F.lit(NEVER)).otherwise(F.col("lost.sent"))
    rows = rows.select(
        *PERSON, "connection", began_from.alias("began_from"), began_to.alias("began_to"),
        _never(F.least("left.sent", broke, next_from)).alias("end_from"),
        # At the latest when the next one begins: a client identifier has one connection.
        _never(F.least(left_to, lost_to, next_to)).alias("end_to"),
        (F.col("left").isNotNull() & (F.coalesce(F.col("left.reason"), F.lit(0)) != 4)
         & F.coalesce(F.col("left.acked") <= _never(next_from), F.lit(False))).alias("clean"),
        F.coalesce("left.detail.session_expiry_s", "opened.detail.session_expiry_s", F.lit(0)).alias("expiry_s"),
        F.coalesce("opened.detail.clean_start", F.lit(True)).alias("clean_start"),
        F.coalesce("opened.detail.session_present", F.lit(False)).alias("present"),
        F.col("opened.acked").isNotNull().alias("answered"), F.col("opened.detail.will").alias("will"))
    expires = F.when(F.col("expiry_s") == 0, F.col("end_from")).otherwise(_later(F.col("end_from"), F.col("expiry_s")))
    expired = F.when(F.col("expiry_s") == 0, F.col("end_to")).otherwise(F.lit(NEVER))
    rows = rows.withColumns({"expires": expires, "expired": expired})
    before = F.lag("expires").over(order)
    # Without an answer a new session may have begun if the earlier one may have expired: the new one is unknown then.
    gone = F.when(F.col("answered"), F.col("began_to") >= before).otherwise(before < NEVER)
    fresh = before.isNull() | F.col("clean_start") | (~F.col("present") & gone)
    # A CONNECT without an answer may take effect at any later time, even after subsequent ones.
    doubt = F.min(F.when(~F.col("answered"), F.col("began_from"))).over(Window.partitionBy(*PERSON))
    rows = rows.withColumns({"fresh": fresh, "doubt": doubt})
    follows, cleaned = F.lead("fresh").over(order), F.lead("clean_start").over(order)
    last = F.coalesce(follows, F.lit(True))
    # least() ignores nulls: without a next connection only expiry ends a session.
    swept_from = F.when(cleaned, F.lead("began_from").over(order))
    rows = rows.withColumns({
        "session": F.sum(F.col("fresh").cast("int")).over(order.rowsBetween(Window.unboundedPreceding, 0)),
        "lost_from": F.when(last, F.least("expires", swept_from, "doubt")),
        "lost_to": F.when(last, F.least("expired", F.lead("began_to").over(order)))})
    return rows.drop("expires", "expired")


def _last_delivered(events: DataFrame, ended: DataFrame) -> DataFrame:
    """`heard`: when the last message that each ended connection received was published."""
    got = (events.where("event = 'delivery' and publisher is not null")
           .select(*PERSON, "connection", "publisher", "publisher_op")
           .join(F.broadcast(ended.select(*PERSON, "connection")), [*PERSON, "connection"]))
    sent = events.where("event = 'publish'").select("run", F.col("client_number").alias("publisher"),
                                                    F.col("op").alias("publisher_op"), "sent")
    return (got.join(sent, ["run", "publisher", "publisher_op"])
            .groupBy(*PERSON, "connection").agg(F.max("sent").alias("heard")))


def sessions(linked: DataFrame, settle_ns: int) -> DataFrame:
    """One row per session, of connections().

    lost_from, lost_to: when it ends. chance: a publish acknowledged by then could still reach the client: the client
    was connected from then for settle_ns, or until the run ended; null: never. away: intervals in which it was not
    connected, for sure or perhaps. unknown: see the top.
    """
    held = F.when(F.col("end_from") >= NEVER, F.lit(NEVER)).when(
        F.col("end_from") - F.col("began_to") >= settle_ns, F.col("end_from") - settle_ns)
    gap = Window.partitionBy(*PERSON, "session").orderBy("connection")
    absent = F.when(F.col("end_from") < NEVER, F.struct(F.col("end_from").alias("since"), "back"))
    linked = linked.withColumn("back", _never(F.lead("began_to").over(gap)))
    return linked.groupBy(*PERSON, "session").agg(
        F.max("lost_from").alias("lost_from"), F.max("lost_to").alias("lost_to"),
        F.max(F.when(F.col("answered"), held)).alias("chance"),
        F.collect_list(absent).alias("away"),
        F.bool_or((F.col("fresh") & ~F.col("clean_start") & F.col("present"))
                  | F.coalesce(F.col("doubt") <= F.col("began_from"), F.lit(False))).alias("unknown"))


def pieces(events: DataFrame, linked: DataFrame, held: DataFrame) -> DataFrame:
    """One row per accepted SUBSCRIBE of a filter. linked: connections(); held: sessions().

    run, client_number, session, chain, kind, group, pattern (matching.filter_parts), granted (QoS), no_local, retains
    (its retained messages may come: by Retain Handling), begin_from, begin_to, end_from, end_to: of the piece;
    sure_from, sure_to: the chain holds for sure in [sure_from, sure_to]; chance, away: of the session; manual: settles
    by `$ack`.
    """
    detail = F.from_json("detail", DETAIL)
    asked = events.where(F.col("event").isin("subscribe", "unsubscribe")).select(
        *PERSON, "connection", "op", F.col("topic").alias("filter"), "sent", "acked", "qos", detail.alias("detail"),
        ((F.col("event") == "subscribe") & F.coalesce(F.col("reason") < 128, F.lit(True))).alias("taken"),
        # A refused SUBSCRIBE may or may not have ended the earlier one.
        F.coalesce(F.col("reason") < 128, F.lit(True)).alias("sure"))
    asked = asked.join(linked.select(*PERSON, "connection", "session"), [*PERSON, "connection"])
    asked = asked.join(held.select(*PERSON, "session", "lost_from", "lost_to", "chance", "away"), [*PERSON, "session"])
    of_filter = Window.partitionBy(*PERSON, "session", "filter")
    order = of_filter.orderBy("op")
    behind = order.rowsBetween(1, Window.unboundedFollowing)
    first = F.col("taken") & ~F.coalesce(F.lag("taken").over(order), F.lit(False))
    asked = asked.withColumns({
        "first": first,
        "end_from": _never(F.least(F.lead("sent").over(order), F.col("lost_from"))),
        "end_to": _never(F.least(F.min(F.when(F.col("sure"), _never("acked"))).over(behind), F.col("lost_to"))),
        "run_of": F.sum(F.when(first, 1).otherwise(0)).over(order.rowsBetween(Window.unboundedPreceding, 0))})
    chain = Window.partitionBy(*PERSON, "session", "filter", "run_of")
    names = F.filter(F.col("detail.user_properties"), lambda pair: F.get(pair, F.lit(0)) == "consumer-group")
    parts = filter_parts(F.col("filter"), F.get(F.get(names, F.lit(0)), F.lit(1)))
    manual = F.exists(F.coalesce("detail.user_properties", F.array().cast("array<array<string>>")),
                      lambda pair: (F.get(pair, F.lit(0)) == "ack") & (F.get(pair, F.lit(1)) == "manual"))
    handling = F.coalesce("detail.retain_handling", F.lit(0))
    return asked.where("taken").select(
        *PERSON, "session", "filter", *[column.alias(name) for name, column in parts.items()],
        F.concat_ws(" ", F.col("run_of"), "filter").alias("chain"),
        F.coalesce("qos", "detail.requested_qos", F.lit(2)).alias("granted"),
        F.coalesce("detail.no_local", F.lit(False)).alias("no_local"),
        ((parts["kind"] == "plain") & ((handling == 0) | ((handling == 1) & F.col("first")))).alias("retains"),
        F.col("sent").alias("begin_from"), _never("acked").alias("begin_to"), "end_from", "end_to",
        _never(F.min("acked").over(chain)).alias("sure_from"), F.max("end_from").over(chain).alias("sure_to"),
        F.coalesce("chance", F.lit(-1)).alias("chance"), "away", manual.alias("manual"))
