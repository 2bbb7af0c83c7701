"""`fluxmq pub`: publishes messages to an MQTT broker, this one or another: an argument, a file, standard input as one
message or line by line. What it publishes with QoS 1 and 2 is acknowledged when it ends.

    source ─► pace ─► client, at most IN_FLIGHT unacknowledged ─► outcomes, in order: the first refusal ends it
"""
from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fluxmq.app import exit_codes
from fluxmq.app.mqtt_options import SECONDS_MAX, Given, as_bytes, mqtt_options, user_properties
from fluxmq.app.queue_text import plain
from fluxmq.model.number_option import Number

if TYPE_CHECKING:
    from fluxmq.app.mqtt_run import Teller
    from fluxmq.client import Client, Properties

__all__ = ["pub"]

IN_FLIGHT = 1000
QUEUE_PREFIX = "$queue/"
NO_SUBSCRIBERS = 0x10
LATE_S = 1.0            # so far behind its times, --rate does not catch up


@dataclass(kw_only=True)
class _Job:
    """What is published, and how far it is. message: None: of standard input or file. properties: by their names in
    MQTT 5."""

    topic: str
    message: bytes | None
    file: Path | None
    lines: bool
    qos: int
    retain: bool
    count: int | None
    rate: float | None
    properties: dict[str, Any]
    user: list[tuple[str, str]] = field(default_factory=list)
    sent: int = 0
    acknowledged: int = 0
    unheard: int = 0    # nobody is subscribed


@click.command()
@click.argument("words", nargs=-1, metavar="TOPIC [MESSAGE]")
@click.option("--queue", metavar="NAME", help="Publish to this queue or stream instead of a TOPIC: the same as "
                                              "'$queue/NAME'. NAME/KEY: with a routing key.")
@click.option("-f", "--file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
              metavar="FILE", help="Publish what is in FILE; -: standard input.")
@click.option("-l", "--lines", is_flag=True, help="Publish each line of standard input, or of FILE, as soon as it is "
                                                  "there.")
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=1, show_default=True,
              help="1, 2: the broker acknowledges each message. 0: nobody knows.")
@click.option("-r", "--retain", is_flag=True, help="The broker keeps it for later subscribers. An empty message "
                                                   "removes the one that is kept.")
@click.option("-c", "--count", type=click.IntRange(1), metavar="N", help="Publish the message N times; with --lines: "
                                                                         "only the first N lines.")
@click.option("--rate", type=Number(0, min_open=True), metavar="N", help="At most N messages a second.")
@click.option("--property", "pairs", multiple=True, metavar="NAME=VALUE", help="A user property. Repeatable.")
@click.option("--content-type", metavar="TYPE", help="Content Type, such as application/json.")
@click.option("--expiry", type=click.IntRange(0, SECONDS_MAX), metavar="SECONDS", help="Not delivered after this time.")
@click.option("--response-topic", metavar="TOPIC", help="Where an answer is expected.")
@click.option("--correlation-data", metavar="TEXT", help="What an answer shall carry.")
@click.option("--partition-key", metavar="KEY", help="Of a queue: messages with one key are in one partition, in "
                                                     "order.")
@click.option("--priority", type=click.IntRange(0, 255), help="Of a queue with max_priority: the highest goes first.")
@click.option("--delay", type=Number(0), metavar="SECONDS", help="Of a queue: not delivered before.")
@mqtt_options
def pub(given: Given, words: tuple[str, ...], queue: str | None, file: Path | None, lines: bool, qos: int, retain: bool,
        count: int | None, rate: float | None, pairs: tuple[str, ...], content_type: str | None, expiry: int | None,
        response_topic: str | None, correlation_data: str | None, partition_key: str | None, priority: int | None,
        delay: float | None) -> int:
    """Publish MESSAGE to TOPIC, or what is in a file or on standard input.

    \b
    fluxmq pub greetings/world hello
    fluxmq pub --retain plant/7/state on          # and '' instead of on removes it
    fluxmq pub --file photo.jpg camera/1
    tail -f log | fluxmq pub --lines logs
    fluxmq pub --queue orders --delay 60 'two coffees'
    fluxmq pub --broker a:1883,b:1883,c:1883 greetings/world hello

    It ends when the broker has acknowledged all messages: those of a queue are on its disk then. MESSAGE is text that
    begins with - behind --.
    """
    topic, message = _what(words, queue, file, lines)
    named = {"content_type": content_type, "message_expiry_interval": expiry, "response_topic": response_topic,
             "correlation_data": None if correlation_data is None else as_bytes(correlation_data)}
    user = user_properties(pairs)
    user += [(word, str(value)) for word, value in (
        ("partition-key", partition_key), ("priority", priority),
        ("x-delay", None if delay is None else round(delay * 1000))) if value is not None]
    numbers = {name: None if value is None else str(value) for name, value in (     # 0 is given, too
        ("expiry", expiry), ("priority", priority), ("delay", delay))}
    given.needs_5(property=pairs, content_type=content_type, response_topic=response_topic,
                  correlation_data=correlation_data, partition_key=partition_key, **numbers)
    return _run(given, _Job(
        topic=topic, message=message, file=file, lines=lines, qos=qos, retain=retain, count=count, rate=rate,
        properties={name: value for name, value in named.items() if value is not None}, user=user))


def _what(words: tuple[str, ...], queue: str | None, file: Path | None, lines: bool) -> tuple[str, bytes | None]:
    """Topic and message. Raises click.UsageError."""
    if queue is not None:
        words = (QUEUE_PREFIX + queue, *words)
    if not words:
        raise click.UsageError("say a TOPIC to publish to, or --queue NAME")
    topic, *messages = words
    if len(messages) > 1:
        raise click.UsageError(f"one MESSAGE, not {len(messages)}: put it in quotes, if it has spaces")
    if not topic:
        raise click.UsageError("a topic is not empty: say a TOPIC to publish to, or --queue NAME")
    if "+" in topic or "#" in topic:
        raise click.UsageError(f"{topic!r} is no topic to publish to: + and # are for subscribers")
    if messages and (file is not None or lines):
        raise click.UsageError("a MESSAGE, or --file, or --lines: not both")
    if not messages and file is None and not lines and sys.stdin.isatty():
        raise click.UsageError("say a MESSAGE ('' is an empty one), --file FILE, or --lines to type one per line")
    return topic, as_bytes(messages[0]) if messages else None


def _run(given: Given, job: _Job) -> int:
    # Not on top: the client takes longer to import than a mistake in the command line takes to be told.
    from fluxmq.app.mqtt_run import Interrupted, Teller, TimeOver, finished, note

    teller = Teller(given)
    try:
        finished(teller, _publish(teller, job), given.timeout)
    except Interrupted:
        note(f"interrupted; {_progress(job)}")
        return exit_codes.INTERRUPTED
    except TimeOver:
        connected = f", and there is no connection to {plain(teller.where)}" if teller.lost else ""
        raise exit_codes.TimeoutOver(f"{given.timeout or 0:g} s are over; {_progress(job)}{connected}") from None
    except exit_codes.RefusedError as error:
        if job.sent > 1:
            raise exit_codes.RefusedError(f"{error} ({_progress(job)})") from error
        raise
    if job.unheard and teller.talks and not job.retain:
        whose = "it" if job.sent == 1 else f"{job.unheard} of {job.sent} messages"
        note(f"nobody is subscribed to {plain(job.topic)}: {whose} went to nobody")
    elif given.verbose:
        note(f"{_progress(job)}")
    return exit_codes.OK


def _progress(job: _Job) -> str:
    messages = f"{job.sent} message{'' if job.sent == 1 else 's'}"
    if not job.qos:
        return f"{messages} sent"
    return f"{messages if job.acknowledged == job.sent else f'{job.acknowledged} of {messages}'} acknowledged"


async def _publish(teller: Teller, job: _Job) -> None:
    from fluxmq.client import Properties
    from fluxmq.client.tasks import Tasks

    properties = Properties(user=job.user, **job.properties) if job.user or job.properties else None
    async with teller.make() as client, Tasks() as tasks:
        results: asyncio.Queue[Any] = asyncio.Queue(IN_FLIGHT)
        tasks.start(_send(client, job, properties, results))
        tasks.start(_settle(job, results))
        await tasks.all()


async def _send(client: Client, job: _Job, properties: Properties | None, results: asyncio.Queue[Any]) -> None:
    """Ends with None among the results."""
    pace = _Pace(job.rate)
    async for payload in _messages(job):
        await pace.turn()
        if job.qos:
            # The results' queue has fewer places than the client, which so never refuses one for lack of room.
            result = client.publish_nowait(job.topic, payload, job.qos, job.retain, properties)
            job.sent += 1
            await results.put(result)
        else:
            await client.publish(job.topic, payload, 0, job.retain, properties)
            job.sent += 1
        if job.sent == job.count:
            break
    await results.put(None)


async def _settle(job: _Job, results: asyncio.Queue[Any]) -> None:
    while (result := await results.get()) is not None:
        outcome = await result
        job.acknowledged += 1
        job.unheard += outcome.reason == NO_SUBSCRIBERS


async def _messages(job: _Job) -> AsyncIterator[bytes]:
    from fluxmq.app.pipes import read_all, read_lines

    message = job.message
    if message is None:
        with _opened(job.file) as source:
            if job.lines:
                async for line in read_lines(source.fileno()):
                    yield line
                return
            message = await read_all(source.fileno())
    for _ in range(job.count or 1):
        yield message


def _opened(file: Path | None) -> Any:
    """A file, or standard input, which stays open."""
    if file is None or str(file) == "-":
        return os.fdopen(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    try:
        return file.open("rb", buffering=0)
    except OSError as error:
        raise click.UsageError(f"--file {file}: {error.strerror or error}") from None


class _Pace:
    """At most so many a second, evenly. rate: None: no limit."""

    def __init__(self, rate: float | None) -> None:
        self._step = 0.0 if rate is None else 1 / rate
        self._next: float | None = None

    async def turn(self) -> None:
        """Waits for the next one's time."""
        now = asyncio.get_running_loop().time()
        if self._next is None or now - self._next > LATE_S:
            self._next = now
        if self._next > now:
            await asyncio.sleep(self._next - now)
        self._next += self._step
