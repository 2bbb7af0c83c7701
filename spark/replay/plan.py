"""From a recording to the operations of each partition: which rows are played, by which client, in which partition.

Two passes. The survey finds connections and clients, and those that did not acknowledge at once and in order; its
result is small and stays in the planning process. The second pass gives each partition its operations, sorted. Both
exist here with pyarrow, for use without Spark, and in plan_spark.py with Spark; the planning in between is shared.
"""
from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluxmq._core.errors import FluxError
from fluxmq.record.reading import Recording
from fluxmq.spark.player.amqp_operations import ANSWERED, METHODS
from fluxmq.spark.player.operations import ACK, COMMAND, KINDS, OPERATIONS, copy_of_client, copy_of_topic
from fluxmq.spark.player.queue_commands import COMMAND_PATTERN, command_ranks

__all__ = ["ACKNOWLEDGEMENTS", "AMQP_DELIVERIES", "AMQP_ROWS", "AMQP_SESSION", "AT_THE_START", "COLUMNS", "HELD_NS",
           "SESSION_ROWS", "ConnectionSeen", "Moves", "Plan", "PlanError", "Survey", "nodes_of", "plain_operations",
           "plain_plan", "plain_survey", "plan_recording"]

COLUMNS = ["seq", "time_ns", "connection", "client_id", "protocol", "version", "direction", "kind", "topic", "qos",
           "retain", "dup", "size", "payload", "properties", "detail", "reason", "answers", "ack_latency", "channel",
           "exchange", "packet_id"]
SESSION_ROWS = ("CONNECT", "SUBSCRIBE", "UNSUBSCRIBE", "DISCONNECT")      # of direction in
ACKNOWLEDGEMENTS = ("PUBACK", "PUBREC")
AMQP_ROWS = ("connection.open", "connection.close", "basic.publish", "basic.ack", "basic.nack", "basic.reject",
             *METHODS)                                                      # of direction in
AMQP_SESSION = ("accepted", "closed")
AMQP_DELIVERIES = ("basic.deliver", "basic.get-ok")
AT_START = '"subscriptions"'        # in the detail of ACCEPTED: the connection was there when the recording began
AT_THE_START = 0                    # time of operations that precede all others
HELD_NS = 1_000_000_000             # an acknowledgement that is later than this was held back by the client
BATCH_ROWS = 8192
PUBLISHERS_MAX = 1 << 32            # numbers that fit into a trace


class PlanError(FluxError):
    """The recording has nothing that can be played, or too much."""


@dataclass(frozen=True, slots=True)
class ConnectionSeen:
    """client: None if unknown from the recording. operations: number of rows to play. first: when the first of them
    came, or when the recording found it there; last: when the client last sent one; ns since 1970, None: never."""

    number: int
    client: str | None
    protocol: str
    operations: int
    first: int | None = None
    last: int | None = None


@dataclass(slots=True)
class Survey:
    """What the first pass found. first, last: ns since 1970, of what is played after the start. manual: those whose
    acknowledgements are played one by one. repeated: publishes with DUP, which are not. published: when the first
    publish was; silent: the last. settling: connections that sent commands about messages of queues. recorded: rows of
    all connections by event: publish, delivery, and such a command (`settlement`). nodes: of each recording that was
    merged, the number of its node, by name; connection c is of recording c % len(nodes)."""

    connections: list[ConnectionSeen]
    manual: list[int] = field(default_factory=list)
    first: int = 0
    last: int = 0
    repeated: int = 0
    published: int = 0
    silent: int = 0
    settling: list[int] = field(default_factory=list)
    recorded: dict[str, int] = field(default_factory=dict)
    nodes: tuple[int, ...] = (0,)


@dataclass(slots=True)
class Moves:
    """Connections of clients that were connected to other nodes before. after: by such a connection, if its operations
    begin before the last one of the client elsewhere: that time, ns since 1970; none of its operations is played
    earlier. later: all connections of clients with several nodes, but the first of each. count: from one node to
    another. overlap_ns: by how much an operation of `after` was put off, at most."""

    after: dict[int, int] = field(default_factory=dict)
    later: set[int] = field(default_factory=set)
    count: int = 0
    overlap_ns: int = 0


@dataclass(slots=True)
class Plan:
    """numbers, names, places: by connection, of the first copy: the client's number and name, and its partition. A
    client's copy k has number `number * copies + k`, and the partition is `(place + k) % partitions`. protocols:
    `mqtt`, `amqp091`."""

    survey: Survey
    copies: int
    partitions: int
    numbers: dict[int, int]
    names: dict[int, str]
    places: dict[int, int]
    clients: int
    operations: int
    not_replayed: dict[str, int]
    protocols: frozenset[str] = frozenset({"mqtt"})
    moves: Moves = field(default_factory=Moves)

    @property
    def span_ns(self) -> int:
        return self.survey.last - self.survey.first


def plan_recording(survey: Survey, *, copies: int = 1, partitions: int = 1) -> Plan:
    """Numbers the clients and distributes them over partitions, the busiest first. Raises PlanError."""
    loads: dict[str, int] = {}
    names: dict[int, str] = {}
    foreign: set[str | int] = set()
    spoken: set[str] = set()
    for seen in survey.connections:
        if seen.protocol not in ("mqtt", "amqp091"):
            foreign.add(seen.client or seen.number)
        elif seen.operations:
            spoken.add(seen.protocol)
            name = names[seen.number] = seen.client or f"connection-{seen.number}"
            loads[name] = loads.get(name, 0) + seen.operations
    if not loads:
        raise PlanError("the recording holds nothing of clients that could be replayed")
    if len(loads) * copies >= PUBLISHERS_MAX:
        raise PlanError(f"{len(loads)} clients {copies} times are more than a trace can number")
    numbered = {name: number for number, name in enumerate(sorted(loads))}
    partitions = max(1, min(partitions, len(loads) * copies))
    room = [(0, place) for place in range(partitions)]
    place_of: dict[str, int] = {}
    for name in sorted(loads, key=lambda name: (-loads[name], name)):
        load, place = heapq.heappop(room)
        place_of[name] = place
        heapq.heappush(room, (load + loads[name], place))
    moves = _moves(survey, names)
    if moves.after:
        latest = max(moves.after.values())
        survey = replace(survey, silent=max(survey.silent, latest), last=max(survey.last, latest))
    left_out = {"clients of other protocols": len(foreign), "repeated publishes": survey.repeated * copies}
    return Plan(survey, copies, partitions, {number: numbered[name] for number, name in names.items()}, names,
                {number: place_of[name] for number, name in names.items()}, len(loads) * copies,
                sum(loads.values()) * copies, {what: count for what, count in left_out.items() if count},
                frozenset(spoken), moves)


def _node(survey: Survey, seen: ConnectionSeen) -> int:
    return survey.nodes[seen.number % len(survey.nodes)]


def _moves(survey: Survey, names: dict[int, str]) -> Moves:
    """The clocks of nodes differ, and a takeover takes time: what a client did at its new node may have an earlier time
    than the last that it did at the old one."""
    found = Moves()
    if len(set(survey.nodes)) == 1:
        return found
    clients: dict[str, list[ConnectionSeen]] = {}
    for seen in survey.connections:
        if seen.number in names and seen.first is not None:
            clients.setdefault(names[seen.number], []).append(seen)
    for theirs in clients.values():
        if len({_node(survey, seen) for seen in theirs}) == 1:
            continue
        last: dict[int, int] = {}               # by node
        before = -1
        for seen in sorted(theirs, key=lambda seen: (seen.first or 0, seen.number)):
            node, first = _node(survey, seen), seen.first or 0
            elsewhere = max((time for other, time in last.items() if other != node), default=0)
            if first <= elsewhere:
                found.after[seen.number] = elsewhere + 1
                found.overlap_ns = max(found.overlap_ns, elsewhere - first)
            if last:
                found.later.add(seen.number)
            found.count += before not in (-1, node)
            last[node] = max(last.get(node, 0), seen.last or 0, found.after.get(seen.number, 0))
            before = node
    return found


# ── with pyarrow ─────────────────────────────────────────────────────────────────────────────────────────────


def nodes_of(recording: Recording) -> tuple[int, ...]:
    """See Survey."""
    names = [one.manifest.cluster.node for one in recording.nodes]
    return tuple(sorted(set(names)).index(name) for name in names)


def _is(table: pa.Table, column: str, *values: str) -> pa.ChunkedArray:
    return pc.fill_null(pc.is_in(table[column], value_set=pa.array(values)), False)


def _strings(recording: Recording) -> pa.Table:
    table = recording.table(COLUMNS)
    for index, entry in enumerate(table.schema):
        if pa.types.is_dictionary(entry.type):
            table = table.set_column(index, entry.name, table[entry.name].cast(entry.type.value_type))
    return table.rename_columns({"time_ns": "time"})


def _played(table: pa.Table) -> pa.ChunkedArray:
    """Rows that are always played; ACCEPTED only at the start."""
    incoming = _is(table, "direction", "in")
    published = pc.and_(_is(table, "kind", "PUBLISH"), pc.invert(pc.fill_null(table["dup"], False)))
    packets = pc.and_(incoming, pc.or_(_is(table, "kind", *SESSION_ROWS), published))
    there = pc.and_(_is(table, "kind", "accepted"),
                    pc.fill_null(pc.match_substring(table["detail"], AT_START), False))
    mqtt = pc.and_(_is(table, "protocol", "mqtt"), pc.or_(packets, pc.or_(there, _is(table, "kind", "closed"))))
    methods = pc.or_(pc.and_(incoming, _is(table, "kind", *AMQP_ROWS)),
                     pc.and_(_is(table, "direction", "out"), _is(table, "kind", *ANSWERED)))
    amqp = pc.and_(_is(table, "protocol", "amqp091"), pc.or_(methods, _is(table, "kind", *AMQP_SESSION)))
    return pc.or_(mqtt, amqp)


def _commands(table: pa.Table) -> pa.ChunkedArray:
    """Played rows that are commands about messages of queues."""
    named = pc.fill_null(pc.match_substring_regex(table["topic"], COMMAND_PATTERN), False)
    asked = pc.and_(_is(table, "kind", "PUBLISH"), pc.and_(_is(table, "direction", "in"), named))
    return pc.and_(_is(table, "protocol", "mqtt"), pc.and_(asked, pc.invert(pc.fill_null(table["dup"], False))))


def _recorded(table: pa.Table, played: pa.ChunkedArray, commands: pa.ChunkedArray) -> dict[str, int]:
    out = pc.and_(_is(table, "kind", "PUBLISH"), _is(table, "direction", "out"))
    found = {"publish": pc.and_(pc.and_(played, pc.invert(commands)), _is(table, "kind", "PUBLISH", "basic.publish")),
             "delivery": pc.or_(out, _is(table, "kind", *AMQP_DELIVERIES)), "settlement": commands}
    return {what: pc.sum(pc.cast(mask, pa.int64())).as_py() or 0 for what, mask in found.items()}


def _manual(table: pa.Table) -> list[int]:
    """Connections that acknowledged out of order, later than HELD_NS, or never."""
    got = table.filter(pc.and_(_is(table, "kind", "PUBLISH"), pc.and_(
        _is(table, "direction", "out"), pc.greater(pc.fill_null(table["qos"], 0), 0))))
    acks = table.filter(pc.and_(_is(table, "direction", "in"), _is(table, "kind", *ACKNOWLEDGEMENTS)))
    silent = set(got["connection"].to_pylist()) - set(acks["connection"].to_pylist())
    acks = acks.filter(pc.is_valid(acks["answers"])).sort_by([("connection", "ascending"), ("seq", "ascending")])
    connection, answers = acks["connection"].to_numpy(), acks["answers"].to_numpy()
    crossed = (connection[1:] == connection[:-1]) & (answers[1:] < answers[:-1])
    held = pc.fill_null(acks["ack_latency"], 0).to_numpy() > HELD_NS
    return sorted(silent | set(connection[1:][crossed].tolist()) | set(connection[held].tolist()))


def plain_survey(recording: Recording) -> Survey:
    """The first pass, in this process."""
    table = _strings(recording)
    mask, commands = _played(table), _commands(table)
    never = pa.scalar(None, pa.int64())
    begun = pc.and_(mask, pc.invert(_is(table, "kind", "closed")))
    counted = table.select(["connection", "client_id", "protocol"]).append_column(
        "played", pc.cast(mask, pa.int64())).append_column(
        "begun", pc.if_else(begun, table["time"], never)).append_column(
        "sent", pc.if_else(pc.and_(mask, _is(table, "direction", "in")), table["time"], never)
        ).group_by("connection").aggregate(
        [("client_id", "max"), ("protocol", "max"), ("played", "sum"), ("begun", "min"), ("sent", "max")])
    connections = [ConnectionSeen(row["connection"], row["client_id_max"], row["protocol_max"], row["played_sum"],
                                  row["begun_min"], row["sent_max"])
                   for row in counted.to_pylist() if row["protocol_max"] is not None]
    mqtt = table.filter(_is(table, "protocol", "mqtt"))
    live = table.filter(pc.and_(mask, pc.invert(_is(table, "kind", "accepted"))))["time"]
    bounds = pc.min_max(live).as_py()
    publishes = table.filter(pc.and_(mask, _is(table, "kind", "PUBLISH", "basic.publish")))
    published = pc.min_max(publishes["time"]).as_py()
    repeated = pc.and_(pc.and_(_is(mqtt, "kind", "PUBLISH"), _is(mqtt, "direction", "in")),
                       pc.fill_null(mqtt["dup"], False))
    return Survey(connections, _manual(mqtt), bounds["min"] or 0, bounds["max"] or 0,
                  pc.sum(pc.cast(repeated, pa.int64())).as_py() or 0, published["min"] or 0, published["max"] or 0,
                  sorted(pc.unique(table["connection"].filter(commands)).to_pylist()), _recorded(table, mask, commands),
                  nodes_of(recording))


def _ranks(table: pa.Table, manual: list[int]) -> dict[int, int]:
    """seq of a delivery of QoS 1 or 2 on a manual connection -> its rank there."""
    chosen = table.filter(pc.and_(pc.is_in(table["connection"], value_set=pa.array(manual, pa.int64())), pc.and_(
        _is(table, "kind", "PUBLISH"), pc.and_(_is(table, "direction", "out"),
                                              pc.greater(pc.fill_null(table["qos"], 0), 0)))))
    ranks: dict[int, int] = {}
    seen: dict[int, int] = {}
    for connection, seq in zip(chosen["connection"].to_pylist(), chosen["seq"].to_pylist(), strict=True):
        ranks[seq] = seen[connection] = seen.get(connection, -1) + 1
    return ranks


def plain_operations(recording: Recording, plan: Plan) -> list[pa.Table]:
    """The second pass, in this process: a table of OPERATIONS for each partition."""
    table = _strings(recording).sort_by([("time", "ascending"), ("seq", "ascending")])
    ranks = _ranks(table, plan.survey.manual) if plan.survey.manual else {}
    settled = command_ranks(table.filter(pc.is_in(table["connection"], value_set=pa.array(
        plan.survey.settling, pa.int64()))).sort_by("seq")) if plan.survey.settling else {}
    acks = pc.and_(_is(table, "kind", *ACKNOWLEDGEMENTS), pc.and_(
        _is(table, "direction", "in"), pc.is_in(table["answers"], value_set=pa.array(list(ranks), pa.int64()))))
    known = pc.is_in(table["connection"], value_set=pa.array(list(plan.numbers), pa.int64()))
    table = table.filter(pc.and_(known, pc.or_(_played(table), acks)))
    connection = table["connection"].to_numpy()
    unique, where = np.unique(connection, return_inverse=True)
    numbers = np.array([plan.numbers[one] for one in unique.tolist()], np.int64)[where]
    places = np.array([plan.places[one] for one in unique.tolist()], np.int64)[where]
    kinds = pc.if_else(_commands(table), pa.scalar(COMMAND, pa.int8()),
                       pa.array([KINDS[kind] for kind in table["kind"].to_pylist()], pa.int8()))
    rank = pa.array([ranks.get(answers) if kind == ACK else settled.get(seq) for kind, answers, seq in zip(
        kinds.to_pylist(), table["answers"].to_pylist(), table["seq"].to_pylist(), strict=True)], pa.int64())
    theirs = _is(table, "protocol", "amqp091")
    methods = pc.if_else(theirs, table["kind"], pa.scalar(None, pa.string()))
    times = _times(table, theirs, plan)
    parts: list[list[pa.Table]] = [[] for _ in range(plan.partitions)]
    for copy in range(plan.copies):
        names = pa.array([copy_of_client(plan.names[one], copy) for one in unique.tolist()], pa.string())
        columns = {
            "time": times, "seq": table["seq"], "copy": pa.array(np.full(len(connection), copy, np.int32)),
            "kind": kinds, "link": pa.array(connection * plan.copies + copy),
            "client_number": pa.array(numbers * plan.copies + copy), "client": names.take(pa.array(where)),
            "topic": _topics(table["topic"], theirs, copy), "rank": rank,
            "method": methods, "tag": table["packet_id"]}
        made = pa.table([columns.get(name, table[name] if name not in columns else None) for name in OPERATIONS.names],
                        schema=OPERATIONS)
        for place, part in enumerate(parts):
            part.append(made.filter(pa.array((places + copy) % plan.partitions == place)))
    return [pa.concat_tables(part).sort_by([("time", "ascending"), ("seq", "ascending"), ("copy", "ascending")])
            for part in parts]


def _times(table: pa.Table, amqp: pa.ChunkedArray, plan: Plan) -> pa.Array:
    """When each operation is due. What was there at the start comes before all else (AT_THE_START); of a client that is
    known from another node already it is a connection like others."""
    times, connection = table["time"].to_numpy().copy(), table["connection"].to_numpy()
    for number, after in plan.moves.after.items():
        times[(connection == number) & (times < after)] = after
    there = pc.and_(_is(table, "kind", "accepted"), pc.invert(amqp)).to_numpy(zero_copy_only=False)
    times[there & ~np.isin(connection, list(plan.moves.later))] = AT_THE_START
    return pa.array(times, pa.int64())


def _topics(topics: pa.ChunkedArray, theirs: pa.ChunkedArray, copy: int) -> pa.ChunkedArray:
    """theirs: which are routing keys of AMQP. A copy's key depends on the exchange, so the player converts it."""
    if not copy:
        return topics
    coded = topics.combine_chunks().dictionary_encode()
    changed = pa.array([copy_of_topic(topic, copy) for topic in coded.dictionary.to_pylist()], pa.string())
    return pc.if_else(theirs, topics, changed.take(coded.indices))


def plain_plan(recording: Recording, *, copies: int = 1,
               partitions: int = 1) -> tuple[Plan, list[Iterator[pa.RecordBatch]]]:
    """The plan and the operations of each partition, without Spark. Raises RecordingError, PlanError."""
    plan = plan_recording(plain_survey(recording), copies=copies, partitions=partitions)
    return plan, [iter(part.to_batches(max_chunksize=BATCH_ROWS)) for part in plain_operations(recording, plan)]
