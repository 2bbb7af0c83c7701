"""A replay as a whole: checks the broker, plays, writes the result. Works without Spark; command.py uses Spark."""
from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import pyarrow as pa

from fluxmq._core.errors import FluxError
from fluxmq.client.options import Address
from fluxmq.record.merging import ClusterRecording, open_recordings
from fluxmq.record.reading import Recording
from fluxmq.spark.player.options import PlayOptions, PlayStatus
from fluxmq.spark.player.play import play
from fluxmq.spark.replay.broker_process import Samples, listening_process, sampled
from fluxmq.spark.replay.plan import Plan, plain_plan
from fluxmq.spark.result import SUMMARY, EventsWriter, Place, Summary, create_result, unused_place

__all__ = [
    "PlayedLinks",
    "ReplayError",
    "ReplayRequest",
    "begin",
    "finish",
    "look_first",
    "perform",
    "play_options",
    "played_links",
    "replay_here",
]

CONNECT_TIMEOUT_S = 10.0
AMQP_PORT = 5672
RUNS = 1 << 32


class ReplayError(FluxError):
    """A replay cannot begin. One sentence with a remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """The options of `fluxmq replay run`. recording: a directory, or several of one cluster. broker: its address, or
    those of the nodes of a cluster, separated by commas, to which clients of the recorded nodes go in turn. speed:
    None, as fast as possible. broker_pid: None, determined from the address.

    amqp_broker: address for AMQP clients; None: `broker` if there are no others, else its host at port 5672.
    """

    recording: str | tuple[str, ...]
    broker: str
    out: str
    amqp_broker: str | None = None
    speed: float | None = 1.0
    copies: int = 1
    partitions: int | None = None
    username: str | None = None
    password: str | None = None
    broker_pid: int | None = None
    quiet_s: float = 1.0
    quiet_max_s: float = 30.0
    patience_s: float = 10.0
    window: int = 1000

    @property
    def recordings(self) -> tuple[str, ...]:
        return (self.recording,) if isinstance(self.recording, str) else self.recording

    def shown_options(self) -> dict[str, Any]:
        """The options for summary.json, without secrets."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)
                if entry.name not in ("recording", "broker", "amqp_broker", "out", "password")}

    def amqp_address(self, protocols: frozenset[str]) -> str:
        """"" if the recording has no AMQP clients."""
        if "amqp091" not in protocols:
            return ""
        if self.amqp_broker is not None:
            return self.amqp_broker
        return ",".join(one if "mqtt" not in protocols else _amqp_beside(one) for one in self.broker.split(","))

    def process(self) -> int | None:
        """Whose CPU and memory are sampled: that of the nodes of a cluster is not."""
        return self.broker_pid or (None if "," in self.broker else listening_process(self.broker))


def _amqp_beside(broker: str) -> str:
    """Where AMQP clients go if nobody says so, when MQTT clients go there."""
    place = Address.of(broker)
    if place.path:
        return broker
    return f"[{place.host}]:{AMQP_PORT}" if ":" in place.host else f"{place.host}:{AMQP_PORT}"


def begin(request: ReplayRequest, recording: Recording, plan: Plan) -> tuple[Place, Summary]:
    """Checks the broker and makes the empty result. Raises ReplayError, ResultError."""
    amqp = request.amqp_address(plan.protocols)
    for address, option, _ in _addresses(request, plan.protocols):
        _opened(address, option).close()
    manifest = recording.manifest
    summary = Summary(
        run=secrets.randbelow(RUNS - 1) + 1, options=request.shown_options(), partitions=plan.partitions,
        why="it did not end",
        recording={"path": str(recording.path), "id": manifest.id, "rows": recording.rows, "clients": plan.clients,
                   "operations": plan.operations, "span_ns": plan.span_ns} | _nodes(recording, plan),
        broker={"address": request.broker} | ({"amqp_address": amqp} if amqp else {}), not_replayed=plan.not_replayed,
        recorded={what: count * plan.copies for what, count in plan.survey.recorded.items()})
    return create_result(request.out, summary), summary


def _nodes(recording: Recording, plan: Plan) -> dict[str, Any]:
    """For summary.json: what is to be known of a recording of several nodes."""
    if not isinstance(recording, ClusterRecording):
        return {}
    return {"nodes": list(dict.fromkeys(one.manifest.cluster.node for one in recording.nodes)),
            "missing": recording.missing, "moves": plan.moves.count, "overlap_ns": plan.moves.overlap_ns}


def look_first(request: ReplayRequest, recording: Recording) -> None:
    """Checks what is possible before the rows are read: a broker answers in each of the recording's protocols, and the
    result can be written. Raises RecordingError, ReplayError, ResultError."""
    unused_place(request.out)
    for address, option, protocol in _addresses(request, recording.protocols()):
        _ask(address, option, protocol, request.patience_s)


def _addresses(request: ReplayRequest, protocols: frozenset[str]) -> Iterator[tuple[str, str, Opening]]:
    """Addresses of clients, the option for each, and the protocol."""
    if "mqtt" in protocols:
        yield from ((one, "--broker", MQTT) for one in request.broker.split(","))
    amqp = request.amqp_address(protocols)
    if amqp:
        option = "--amqp-broker" if request.amqp_broker or amqp != request.broker else "--broker"
        yield from ((one, option, AMQP) for one in amqp.split(","))


def _opened(address: str, option: str) -> socket.socket:
    """Raises ReplayError if nothing listens there."""
    place = Address.of(address)
    try:
        if not place.path:
            return socket.create_connection((place.host, place.port), CONNECT_TIMEOUT_S)
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(place.path)
        except OSError:
            made.close()
            raise
        return made
    except OSError as error:
        raise ReplayError(f"there is no broker at {address}: {error.strerror or error}; start one, or name "
                          f"another with {option}") from None


def _ask(address: str, option: str, protocol: Opening, patience_s: float) -> None:
    """Begins a session. Raises ReplayError if nothing listens there, or if the answer is not of that protocol; a
    refusal counts as an answer. A broker that does not answer is detected during the replay."""
    with _opened(address, option) as probe:
        probe.settimeout(patience_s)
        try:
            probe.sendall(protocol.request)
            found = probe.recv(4)
            if found.startswith(protocol.answer):
                probe.sendall(protocol.end)
        except TimeoutError:
            return
        except OSError:
            found = b""
    if not found.startswith(protocol.answer):
        raise ReplayError(f"what listens at {address} does not speak {protocol.name}"
                          f"{', but AMQP' if found == b'AMQP' else ''}; the recording has clients of "
                          f"{protocol.name}: name a listener for them with {option}")


class Opening(NamedTuple):
    """The beginning of a session. answer: the first bytes of the broker's answer."""

    name: str
    request: bytes
    answer: bytes
    end: bytes


# A CONNECT of 3.1.1 with a clean session and no client identifier; CONNACK; DISCONNECT.
MQTT = Opening("MQTT", b"\x10\x0c\0\x04MQTT\x04\x02\0\x0a\0\0", b"\x20", b"\xe0\0")
# The protocol header; a method frame, which is connection.start.
AMQP = Opening("AMQP 0-9-1", b"AMQP\0\0\x09\x01", b"\x01", b"")


class PlayedLinks(NamedTuple):
    """Connections with special handling. manual: acknowledgements are operations; settling: they settle messages of
    queues by commands."""

    manual: list[int]
    settling: list[int]


def played_links(plan: Plan) -> PlayedLinks:
    """Of all copies."""
    return PlayedLinks(*([number * plan.copies + copy for number in numbers for copy in range(plan.copies)]
                         for numbers in (plan.survey.manual, plan.survey.settling)))


def play_options(request: ReplayRequest, plan: Plan, run: int) -> PlayOptions:
    return PlayOptions(
        address=request.broker, amqp_address=request.amqp_address(plan.protocols), run=run,
        nodes=plan.survey.nodes, copies=plan.copies, first=plan.survey.first,
        published=plan.survey.published, silent=plan.survey.silent, speed=request.speed,
        username=request.username, password=request.password, quiet_s=request.quiet_s, quiet_max_s=request.quiet_max_s,
        patience_s=request.patience_s, window=request.window)


def perform(place: Place, task: int, operations: Iterable[pa.RecordBatch], options: PlayOptions, links: PlayedLinks,
            on_status: Callable[[PlayStatus], object] = lambda status: None) -> tuple[PlayStatus, dict[str, int]]:
    """Plays one partition into the files of a task. on_status: called regularly. Returns status and rows by event."""
    status = PlayStatus()
    writer = EventsWriter(place, task)
    try:
        for batch in play(operations, options, status, manual=links.manual, settling=links.settling):
            writer.write(batch)
            on_status(status)
    finally:
        writer.close()
    return status, writer.counts


def finish(place: Place, summary: Summary, ended: list[tuple[PlayStatus, dict[str, int]]],
           used: Samples) -> Summary:
    """Writes the final summary.json."""
    states = [status for status, _ in ended]
    summary.started = min((status.started for status in states if status.started), default=None)
    summary.finished = max((status.finished for status in states), default=time.time_ns())
    summary.complete = bool(states) and all(status.complete for status in states)
    summary.why = next((status.why for status in states if status.why), "" if summary.complete else summary.why)
    summary.not_sent = sum(status.not_sent for status in states)
    unknown = sum(status.unknown_settlements for status in states)
    if unknown:
        summary.not_replayed["settlements of messages whose delivery the recording does not show"] = unknown
    summary.late_ns_max = max((status.late_ns_max for status in states), default=0)
    summary.cpu, summary.memory = used.cpu, used.memory
    for _, counts in ended:
        for event, count in counts.items():
            summary.counts[event] = summary.counts.get(event, 0) + count
    place.write(SUMMARY, summary.to_json())
    return summary


def replay_here(request: ReplayRequest, on_status: Callable[[PlayStatus], object] = lambda status: None) -> Summary:
    """Replays in this process, one partition, without Spark. Raises RecordingError, PlanError, ReplayError,
    ResultError; a failure of the broker is not raised, but in the summary."""
    recording = open_recordings(*request.recordings)
    plan, (operations,) = plain_plan(recording, copies=request.copies)
    place, summary = begin(request, recording, plan)
    ended: list[tuple[PlayStatus, dict[str, int]]] = []
    with sampled(request.process()) as used:
        try:
            ended.append(perform(place, 0, operations, play_options(request, plan, summary.run), played_links(plan),
                                 on_status))
        finally:
            finish(place, summary, ended, used)
    return summary
