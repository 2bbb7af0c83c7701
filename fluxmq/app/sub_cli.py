"""`fluxmq sub`: subscribes to topics, queues and streams of an MQTT broker, this one or another, and prints what comes.

    client.messages, and a consumer for each queue ─► printed already? ─► print ─► settle ─► enough?

A message is settled when it is printed, and a broken connection may lose the settlement: then the broker sends it
again. What was printed is remembered (printed.py), so that it is settled again, and not printed again.
"""
from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fluxmq.app import exit_codes
from fluxmq.app.message_text import FORMATS, LETTERS, Printer, compiled
from fluxmq.app.mqtt_options import Given, mqtt_options
from fluxmq.app.pipes import read_lines, write_all
from fluxmq.app.queue_text import plain

if TYPE_CHECKING:
    from fluxmq.app.mqtt_run import Teller
    from fluxmq.app.printed import Printed
    from fluxmq.client import Client, QueueConsumer, QueueMessage

__all__ = ["sub"]

_Settle = Callable[[], Awaitable[object]]
QUEUE_PREFIX = "$queue/"
SHARE_PREFIX = "$share/"
ACKS = ("auto", "none", "nack", "reject", "ask")
SKIP_RETAINED = 2
ASKED_AT_ONCE = 100     # of --ack ask: taken and not settled, those that were left included
_HELP_OF_FORMATS = "\n".join([
    "\b", *(f"%{letter:<3} {meaning}" for letter, meaning in LETTERS.items()), "%{NAME}  a user property",
    r"\n \t \r \0 \\  as in C", "", "\b", *(f"{name:<4} {meaning}" for name, meaning in FORMATS.items())])


@dataclass(kw_only=True)
class _Wanted:
    """What is subscribed to, and how far it is. queues: name and filter of routing keys."""

    filters: list[str]
    queues: list[tuple[str, str]]
    qos: int
    ack: str
    group: str | None
    prefetch: int | None
    offset: str | int | datetime | None
    exclusive: bool
    retained: bool
    local: bool
    count: int | None
    write: Printer
    printed: int = 0


def _format(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            compiled(value, on_terminal=False)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return value


@click.command(epilog=f"Letters and names of --format:\n\n{_HELP_OF_FORMATS}")
@click.argument("filters", nargs=-1, metavar="FILTER...")
@click.option("--queue", "queues", metavar="NAME", multiple=True, help="Consume this queue or stream: the same as "
              "'$queue/NAME'. NAME/KEY: only these routing keys, with + and #.")
@click.option("-g", "--group", metavar="NAME", help="The consumers of a group share the messages of a queue, or of a "
                                                    "topic. Of a stream: they share a position.")
@click.option("--ack", type=click.Choice(ACKS), default="auto", show_default=True, help=(
    "Of queues. auto: a message is settled when it is printed. none: look at the messages; they stay. nack: give each "
    "back, for another delivery. reject: make dead letters of them. ask: you say it for each one."))
@click.option("--prefetch", type=click.IntRange(1), metavar="N", help="Of queues: take at most N messages before they "
                                                                      "are settled.")
@click.option("--from", "start", metavar="POSITION", help="Where to begin in a stream: first, last, next, resume, N, "
                                                          "-N or timestamp:ISO8601.")
@click.option("--exclusive", is_flag=True, help="Of queues: each partition belongs to one consumer of the group.")
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=1, show_default=True, help="The highest QoS wanted.")
@click.option("--no-retained", is_flag=True, help="Do not print what is retained when it begins.")
@click.option("--no-local", is_flag=True, help="Not what this client id itself publishes.")
@click.option("-c", "--count", type=click.IntRange(1), metavar="N", help="End after N messages.")
@click.option("-F", "--format", "shape", metavar="FORMAT", callback=_format, help=(
    "json, hex, raw, or text with letters such as '%t %p'. Default: %p; with several topics %t %p."))
@mqtt_options
def sub(given: Given, filters: tuple[str, ...], queues: tuple[str, ...], group: str | None, ack: str,
        prefetch: int | None, start: str | None, exclusive: bool, qos: int, no_retained: bool, no_local: bool,
        count: int | None, shape: str | None) -> int:
    """Print the messages that match any FILTER, until Ctrl-C, --count or --timeout.

    \b
    fluxmq sub 'greetings/#'
    fluxmq sub --format json --count 1 plant/7/state
    fluxmq sub --queue orders --group billing
    fluxmq sub --queue audit --from first --format '%o %p'
    fluxmq sub --broker a:1883,b:1883,c:1883 'greetings/#'

    When the connection is lost it connects again, with several brokers to the next one; nothing is printed twice.
    """
    for one in filters:
        _check_shared(one)
    topics, wanted = _sorted(given, [*filters, *(QUEUE_PREFIX + name for name in queues)], group)
    if not topics and not wanted:
        raise click.UsageError("say a FILTER, such as 'greetings/#', or --queue NAME")
    of_queues = {"ack": "" if ack == "auto" else ack, "prefetch": prefetch, "from": start, "exclusive": exclusive}
    given.needs_5(**of_queues, no_retained=no_retained, no_local=no_local)
    if not wanted:
        names = [f"--{name}" for name, value in of_queues.items() if value]
        if names:
            raise click.UsageError(f"{names[0]} is for queues: say --queue NAME")
    several = len(topics) + len(wanted) > 1 or any(sign in topic for topic in topics for sign in "+#")
    write = compiled(shape or ("%t %p" if several else "%p"), on_terminal=sys.stdout.isatty())
    return _run(given, _Wanted(
        filters=topics, queues=wanted, qos=qos, ack=ack, group=group, prefetch=prefetch, offset=_position(start),
        exclusive=exclusive, retained=not no_retained, local=not no_local, count=count, write=write))


def _sorted(given: Given, filters: list[str], group: str | None) -> tuple[list[str], list[tuple[str, str]]]:
    """Filters to subscribe to, and queues to consume with MQTT 5."""
    topics, queues = [], []
    for one in filters:
        if one.startswith(QUEUE_PREFIX) and given.version == 5:
            name, _, routing = one.removeprefix(QUEUE_PREFIX).partition("/")
            queues.append((name, routing or "#"))
        elif group is not None and not one.startswith(SHARE_PREFIX):
            if not group or any(sign in group for sign in "/+#"):
                raise click.UsageError(f"--group {group!r}: the name of a group is not empty, and has no / + #")
            topics.append(f"{SHARE_PREFIX}{group}/{one}")
        else:
            topics.append(one)
    return topics, queues


def _check_shared(one: str) -> None:
    """The broker ends a connection for what is wrong here [MQTT-4.8.2-1]. Raises click.UsageError."""
    if one.startswith(SHARE_PREFIX):
        name, _, rest = one.removeprefix(SHARE_PREFIX).partition("/")
        if not name or not rest or any(sign in name for sign in "+#"):
            raise click.UsageError(f"{one!r} is no shared subscription: write {SHARE_PREFIX}NAME/FILTER, or "
                                   "--group NAME FILTER")


def _position(text: str | None) -> str | int | datetime | None:
    """As QueueConsumer takes it."""
    if text is None:
        return None
    word, _, when = text.replace("=", ":", 1).partition(":")
    if word == "timestamp":
        try:
            return f"timestamp={when}" if when.isdigit() else datetime.fromisoformat(when)
        except ValueError:
            raise click.UsageError(f"--from {text}: a time is such as 2026-01-31T08:00:00Z") from None
    if text not in ("first", "last", "next", "resume") and not re.fullmatch(r"-?\d+", text):
        raise click.UsageError(f"--from takes first, last, next, resume, N, -N or timestamp:ISO8601, not {text!r}")
    return text


# ── running ──────────────────────────────────────────────────────────────────────────────────────────────────


class _OutputEnded(Exception):
    """Nobody reads standard output any more."""


def _run(given: Given, wanted: _Wanted) -> int:
    # Not on top: the client takes longer to import than a mistake in the command line takes to be told.
    from fluxmq.app.mqtt_run import Interrupted, Teller, TimeOver, finished

    teller = Teller(given)
    try:
        finished(teller, _subscribe(teller, wanted), given.timeout)
    except Interrupted:
        return exit_codes.OK if wanted.count is None else exit_codes.INTERRUPTED
    except TimeOver:
        if wanted.count is not None or not wanted.printed:
            came = f"{wanted.printed} of {wanted.count} messages" if wanted.count else "no message"
            raise exit_codes.TimeoutOver(f"{given.timeout or 0:g} s are over, and {came} came") from None
    except _OutputEnded:
        raise BrokenPipeError from None     # which ends every command quietly
    except _Quit:
        pass
    return exit_codes.OK


async def _subscribe(teller: Teller, wanted: _Wanted) -> None:
    from fluxmq.app.mqtt_run import note
    from fluxmq.app.printed import Printed
    from fluxmq.client.tasks import Tasks

    printed = Printed()
    teller.on_lost = printed.connection_lost
    async with teller.make(manual_ack=True) as client, Tasks() as tasks:
        screen = _Screen(wanted, printed)
        consumers = [_consumer(client, wanted, *queue) for queue in wanted.queues]
        # Readers first: a retained message comes in front of the answer to SUBSCRIBE.
        if wanted.filters:
            tasks.start(_print_topics(client, screen))
        for one in wanted.filters:
            granted = await client.subscribe(one, wanted.qos, no_local=not wanted.local,
                                             retain_handling=0 if wanted.retained else SKIP_RETAINED)
            if granted < wanted.qos and teller.given.verbose:
                note(f"{plain(one)} is subscribed to with QoS {granted}, not {wanted.qos}")
        for consumer in consumers:
            await consumer.start()
            tasks.start(_print_queue(consumer, screen))
        if teller.talks:
            names = [*wanted.filters, *(QUEUE_PREFIX + name for name, _ in wanted.queues)]
            note(f"subscribed to {', '.join(map(plain, names))} at {plain(teller.where)}"
                 f"{'' if wanted.count else '; Ctrl-C ends'}")
        await tasks.first()


def _consumer(client: Client, wanted: _Wanted, name: str, routing: str) -> QueueConsumer:
    prefetch = wanted.prefetch
    if wanted.count is not None and wanted.ack != "none":   # not more than are printed: others may want them
        prefetch = min(prefetch or wanted.count, wanted.count)
    if wanted.ack == "ask":
        prefetch = min(prefetch or ASKED_AT_ONCE, ASKED_AT_ONCE)
    return client.queue(name).consume(
        group=wanted.group, prefetch=prefetch, ack="auto" if wanted.ack == "auto" else "manual", routing=routing,
        offset=wanted.offset, exclusive=wanted.exclusive, qos=wanted.qos)


class _Screen:
    """Prints one message after the other, and counts."""

    def __init__(self, wanted: _Wanted, printed: Printed) -> None:
        self.wanted = wanted
        self.printed = printed
        self._turn = asyncio.Lock()
        self._answers = read_lines(sys.stdin.fileno()) if wanted.ack == "ask" else None

    @property
    def done(self) -> bool:
        """Whether as many are printed as were wanted."""
        return self.wanted.count is not None and self.wanted.printed >= self.wanted.count

    async def show(self, message: Any, remember: Callable[[Any], None],
                   settle: _Settle) -> bool:
        """Prints it and settles it. Returns whether that was the last one."""
        async with self._turn:
            if self.done:
                return True
            data = self.wanted.write(message, self.wanted.printed + 1, time.time())
            try:
                await write_all(sys.stdout.fileno(), data)
            except BrokenPipeError:
                raise _OutputEnded from None
            except OSError as error:
                raise click.ClickException(f"standard output: {error.strerror or error}") from None
            self.wanted.printed += 1
            remember(message)
            await settle()
            return self.done

    async def ask(self, message: QueueMessage) -> None:
        """Asks on the terminal what becomes of it, and does it."""
        verbs: dict[str, _Settle] = {"a": message.ack, "n": message.nack, "r": message.reject, "l": _nothing}
        assert self._answers is not None
        while True:
            click.echo("[a]ck, [n]ack, [r]eject, [l]eave it, [q]uit? ", nl=False, err=True)
            answer = (await anext(self._answers, b"q")).decode("utf-8", "replace").strip().lower()[:1]
            if answer == "q":
                raise _Quit
            if answer in verbs:
                await verbs[answer]()
                return


async def _print_topics(client: Client, screen: _Screen) -> None:
    printed = screen.printed
    async for message in client.messages:
        if printed.has(message):
            await message.ack()
        elif await screen.show(message, printed.add, message.ack):
            return


async def _print_queue(consumer: QueueConsumer, screen: _Screen) -> None:
    from fluxmq.app.mqtt_run import note
    from fluxmq.client import PublishRefused

    ack, printed = screen.wanted.ack, screen.printed
    async for message in consumer:
        if ack == "auto" and printed.has_queued(message):
            await message.ack()
            continue
        verbs: dict[str, _Settle] = {"auto": message.ack, "nack": message.nack, "reject": message.reject,
                                     "none": _nothing, "ask": partial(screen.ask, message)}
        try:
            if await screen.show(message, printed.add_queued, verbs[ack]):
                return
        except PublishRefused as error:
            if ack != "ask":
                raise
            note(plain(error))      # such as: another consumer has it by now


async def _nothing() -> None:
    """A message stays as it is."""


class _Quit(Exception):
    """Somebody has seen enough."""
