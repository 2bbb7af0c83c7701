"""`fluxmq queue …`: queues of a running broker, over its admin socket (admin/routes.py). Tables, or JSON."""
import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from fluxmq.app.queue_place import (
    PAGE,
    Place,
    asks_queues,
    confirm,
    move,
    pages,
    partition_option,
    print_message,
    read_position,
    tell_missing,
    yes_option,
)
from fluxmq.app.queue_text import as_groups, as_queue, as_table, counted, in_use, plain
from fluxmq.model.number_option import Number

__all__ = ["queue"]

_READ_BYTES = 64 * 1024
_PUBLISH_BYTES_MAX = 4 << 20  # of payload in one request; the broker takes 16 MiB, base64 and escapes included


@click.group()
def queue() -> None:
    """Manage queues and streams of a running broker."""


@queue.command("list")
@click.option("--all", "everything", is_flag=True, help="Also empty queues of the broker itself ($under-way-…).")
@asks_queues
def queue_list(place: Place, everything: bool) -> None:
    """List the queues."""
    answer = place.client.ask("GET", "queues")
    if not everything:
        answer["queues"] = in_use(answer["queues"])
    columns = {"name": "NAME", "type": "TYPE", "partitions": "PARTITIONS", "messages": "MESSAGES", "ready": "READY",
               "unsettled": "UNSETTLED", "delayed": "DELAYED", "bytes": "BYTES", "groups": "GROUPS",
               "consumers": "CONSUMERS", "dead_letters": "DEAD LETTERS"}
    places = {"node": "NODE", "replication_group": "REPLICATION GROUP"}
    columns |= {key: places[key] for key in places if any(one.get(key) for one in answer["queues"])}
    if any(one.get("state", "running") != "running" for one in answer["queues"]):
        columns["state"] = "STATE"
    place.show(answer, lambda: as_table(answer["queues"], columns) if answer["queues"] else "there are no queues")
    tell_missing(answer)


@queue.command("describe")
@click.argument("name")
@asks_queues
def queue_describe(place: Place, name: str) -> None:
    """Show everything about the queue NAME."""
    answer = place.client.ask("GET", "queues", name)
    place.show(answer, lambda: as_queue(answer))
    tell_missing(answer)


@queue.command("create")
@click.argument("name")
@click.option("--type", "type_", type=click.Choice(["classic", "stream", "ephemeral"]), default="classic",
              show_default=True, help="classic: a work queue; stream: a log to be read from any position; "
                                      "ephemeral: in memory, gone with its last consumer.")
@click.option("--topic", "topics", multiple=True, metavar="FILTER", help="Capture what is published here. Repeatable.")
@click.option("--partitions", type=click.IntRange(1), help="How many partitions.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE",
              help="Any key of a queue's configuration, such as limits.message_ttl=1h. Repeatable.")
@asks_queues
def queue_create(place: Place, name: str, type_: str, topics: tuple[str, ...], partitions: int | None,
                 sets: tuple[str, ...]) -> None:
    """Create the queue NAME, or change what may be changed of it. One that is already so is left as it is."""
    spec: dict[str, Any] = {"type": type_}
    if topics:
        spec["topics"] = list(topics)
    if partitions is not None:
        spec["partitions"] = partitions
    for text in sets:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.UsageError(f"--set takes KEY=VALUE, not {text!r}")
        _put(spec, key.split("."), _value(value))
    answer = place.client.ask("PUT", "queues", name, body=spec)
    texts = {"created": "is created", "changed": "is changed", "unchanged": "already exists, exactly as asked for"}
    place.show(answer, lambda: f"{plain(name)} {texts.get(answer['result'], answer['result'])}")


def _put(spec: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        below = spec.setdefault(part, {})
        if not isinstance(below, dict):
            raise click.UsageError(f"{'.'.join(path)}: {part} has a value already")
        spec = below
    spec[path[-1]] = value


def _value(text: str) -> Any:
    """Parses numbers, booleans and lists as JSON; everything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@queue.command("delete")
@click.argument("name")
@click.option("--if-unused", is_flag=True, help="Only if it has no consumers.")
@click.option("--if-empty", is_flag=True, help="Only if it is empty.")
@yes_option
@asks_queues
def queue_delete(place: Place, name: str, if_unused: bool, if_empty: bool, yes: bool) -> None:
    """Delete the queue NAME with its messages and groups."""
    confirm(yes or if_empty, f"Delete {plain(name)} with all that is in it?")
    answer = place.client.ask("DELETE", "queues", name, query={"if_unused": if_unused, "if_empty": if_empty})
    gone = "" if answer["messages"] is None else f", and {answer['messages']} messages with it"
    place.show(answer, lambda: f"{plain(name)} is deleted{gone}")


@queue.command("move")
@click.argument("name")
@click.argument("node")
@partition_option
@asks_queues
def queue_move(place: Place, name: str, node: str, partition: int | None) -> None:
    """Move the queue NAME to NODE of the cluster, while it is used: with all partitions, or one.

    It returns when the queue is there, after minutes if it is large. Exclusive queues stay with their connection.
    """
    answer = move(place, name, node, partition)
    part = "" if partition is None else f" partition {partition}"
    place.show(answer, lambda: f"{plain(name)}{part} is at node {plain(node)}")


@queue.command("purge")
@click.argument("name")
@click.option("--unsettled", is_flag=True, help="Also those that consumers hold; they do not come back.")
@yes_option
@asks_queues
def queue_purge(place: Place, name: str, unsettled: bool, yes: bool) -> None:
    """Empty the queue NAME, for all its groups. What consumers hold stays: they settle it, or it goes back."""
    confirm(yes, f"Throw away all messages in {plain(name)}{'' if unsettled else ' that no consumer holds'}?")
    answer = place.client.ask("POST", "queues", name, "purge", query={"unsettled": unsettled})
    held = f"; {count} that consumers hold stay" if (count := answer["unsettled"]) else ""
    place.show(answer, lambda: f"{counted(answer['purged'], 'message')} gone from {plain(name)}{held}")


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────


@queue.command("tail")
@click.argument("name")
@click.option("--from", "start", metavar="POSITION", help="first, last, next, N, -N or timestamp:ISO8601. "
                                                          "Default: COUNT messages before the end.")
@click.option("-n", "--count", type=click.IntRange(0), help="Print up to this many messages; default 10, all with "
                                                            "--from; with --follow, how many before the new ones.")
@click.option("-f", "--follow", is_flag=True, help="Also print new messages, until interrupted.")
@click.option("--properties", is_flag=True, help="Also print their properties.")
@partition_option
@asks_queues
def queue_tail(place: Place, name: str, start: str | None, count: int | None, follow: bool, properties: bool,
               partition: int | None) -> None:
    """Print messages of the queue NAME. Nothing is consumed."""
    if start is None:
        count = 10 if count is None else count
        start = f"-{count}" if count else "next"
    if not follow:
        for message in pages(place, ("queues", name, "messages"), read_position(start),
                              sys.maxsize if count is None else count, partition):
            print_message(place, message, properties)
        return
    query = {"from": read_position(start), "partition": partition}
    for message in place.client.lines("queues", name, "tail", query=query):
        print_message(place, message, properties)
        sys.stdout.flush()


@queue.command("publish")
@click.argument("name")
@click.argument("message", required=False)
@click.option("--key", default="", help="Routing key: what would follow `$queue/NAME/`.")
@click.option("--property", "pairs", multiple=True, metavar="NAME=VALUE", help="A user property. Repeatable.")
@click.option("--partition-key", help="Messages with one key are in one partition, in order.")
@click.option("--priority", type=click.IntRange(0, 9), help="9 goes first.")
@click.option("--delay", type=Number(0), metavar="SECONDS", help="Deliver only after this time.")
@click.option("--expiry", type=click.IntRange(0, 0xFFFFFFFF), metavar="SECONDS", help="Do not deliver after this time.")
@click.option("--content-type", default="", help="Content Type.")
@asks_queues
def queue_publish(place: Place, name: str, message: str | None, key: str, pairs: tuple[str, ...],
                  partition_key: str | None, priority: int | None, delay: float | None, expiry: int | None,
                  content_type: str) -> None:
    """Publish MESSAGE, or each line of standard input, to the queue NAME. Returns when it is on the disk."""
    properties: list[tuple[str, str]] = []
    for text in pairs:
        word, equals, value = text.partition("=")
        if not word or not equals:
            raise click.UsageError(f"--property takes NAME=VALUE, not {text!r}")
        properties.append((word, value))
    for word, given in (("partition-key", partition_key), ("priority", priority),
                        ("x-delay", None if delay is None else round(delay * 1000))):
        if given is not None:
            properties.append((word, str(given)))
    common: dict[str, Any] = {"key": key, "content_type": content_type, "expiry_s": expiry,
                              "user_properties": properties}
    batches = iter([[message.encode("utf-8", "surrogateescape")]]) if message is not None else _lines()
    from fluxmq.app.admin_client import AdminError

    accepted, places = 0, []
    for batch in batches:
        body = {"messages": [{**_payload(payload), **common} for payload in batch]}
        try:
            answer = place.client.ask("POST", "queues", name, "messages", body=body)
        except AdminError as error:
            accepted += error.answer.get("accepted", 0)
            if accepted:
                raise AdminError(f"{accepted} messages were published, then: {error}", status=error.status,
                                 word=error.word) from error
            raise
        accepted += answer["accepted"]
        if place.as_json:
            places += answer["messages"]
    place.show({"accepted": accepted, "messages": places},
               lambda: f"{accepted} {'message is' if accepted == 1 else 'messages are'} in {plain(name)}")


def _payload(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"payload": b64encode(payload).decode(), "encoding": "base64"}


def _lines() -> Iterator[list[bytes]]:
    """Lines of standard input, in the groups in which they arrive, so that those of a slow writer are published at
    once."""
    source = sys.stdin.buffer
    # read1 returns what is available; a source without it (in tests) is read to its end
    read: Any = getattr(source, "read1", source.read)
    rest = b""
    while data := read(_READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        yield from _batches(lines)
        if len(rest) > _PUBLISH_BYTES_MAX:
            raise click.ClickException(f"a line of more than {_PUBLISH_BYTES_MAX >> 20} MiB; publish it by MQTT")
    if rest:
        yield [rest]


def _batches(lines: list[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        if batch and (len(batch) == PAGE or size + len(line) > _PUBLISH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line)
    if batch:
        yield batch


# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────


@queue.command("groups")
@click.argument("name")
@click.option("--delete", "gone", metavar="GROUP", help="Delete this group instead; its position is forgotten.")
@yes_option
@asks_queues
def queue_groups(place: Place, name: str, gone: str | None, yes: bool) -> None:
    """List the consumer groups of the queue NAME."""
    if gone is not None:
        confirm(yes, f"Delete the group {plain(gone)} of {plain(name)}, with its position?")
        answer = place.client.ask("DELETE", "queues", name, "groups", gone)
        place.show(answer, lambda: f"{plain(gone)} is deleted")
        return
    answer = place.client.ask("GET", "queues", name, "groups")
    place.show(answer, lambda: as_groups(answer["groups"]) if answer["groups"] else "there are no groups")


@queue.command("seek", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("group")
@click.argument("position")
@partition_option
@yes_option
@asks_queues
def queue_seek(place: Place, name: str, group: str, position: str, partition: int | None, yes: bool) -> None:
    """Move GROUP of the queue NAME to POSITION: first, last, next, N, -N (before the end) or timestamp:ISO8601.

    Its former position is forgotten: what it passes over it does not get, and what it goes back to comes again.
    """
    confirm(yes, f"Move the group {plain(group)} of {plain(name)} to {plain(position)}, and forget where it was?")
    answer = place.client.ask("POST", "queues", name, "groups", group, "seek",
                              body={"position": read_position(position), "partition": partition})
    place.show(answer, lambda: as_table(answer["positions"], {"partition": "PARTITION", "next": "NEXT"}))


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────


@queue.group("dlq")
def dlq() -> None:
    """Manage dead letters: messages that were rejected, failed too often, expired or did not fit."""


@dlq.command("list")
@asks_queues
def dlq_list(place: Place) -> None:
    """List where dead letters are."""
    answer = place.client.ask("GET", "dlq")
    columns = {"queue": "QUEUE", "dead_letter_queue": "DEAD LETTER QUEUE", "messages": "MESSAGES", "bytes": "BYTES",
               "oldest_ms": "OLDEST", "newest_ms": "NEWEST"}
    if any(one.get("node") for one in answer["dead_letters"]):
        columns["node"] = "NODE"
    place.show(answer, lambda: as_table(answer["dead_letters"], columns) if answer["dead_letters"] else
               "there are no dead letters")
    tell_missing(answer)


@dlq.command("show")
@click.argument("name")
@click.option("--from", "start", default="first", metavar="POSITION", help="Where to begin; default: the oldest.")
@click.option("-n", "--count", type=click.IntRange(1), default=10, show_default=True, help="Print up to this many.")
@asks_queues
def dlq_show(place: Place, name: str, start: str, count: int) -> None:
    """Print dead letters of the queue NAME with reason, origin and count. The first word names one for `replay`."""
    for message in pages(place, ("queues", name, "dlq"), read_position(start), count):
        print_message(place, message, True)


@dlq.command("replay")
@click.argument("name")
@click.argument("places", nargs=-1, metavar="[PARTITION:OFFSET]...")
@click.option("--all", "everything", is_flag=True, help="All that are there now.")
@asks_queues
def dlq_replay(place: Place, name: str, places: tuple[str, ...], everything: bool) -> None:
    """Put dead letters of the queue NAME back into it: those named, as `show` names them, or --all."""
    if bool(places) == everything:
        raise click.UsageError("name dead letters as PARTITION:OFFSET, or say --all")
    from fluxmq.app.admin_client import AdminError

    replayed = 0
    try:
        for moved in _replays(place, name, places, everything):
            replayed += moved
    except AdminError as error:
        if not replayed:
            raise
        raise AdminError(f"{counted(replayed, 'dead letter')} back, then: {error}", status=error.status,
                         word=error.word) from error
    place.show({"replayed": replayed}, lambda: f"{counted(replayed, 'dead letter')} back in {plain(name)}")


def _replays(place: Place, name: str, places: tuple[str, ...], everything: bool) -> Iterator[int]:
    """Yields the number of messages moved by each request."""
    if everything:
        # At most the present number: messages that are dead-lettered again must not be replayed endlessly.
        found = place.client.ask("GET", "dlq")["dead_letters"]
        left = next((entry["messages"] for entry in found if entry["queue"] == place.shown(name)), 0)
        if left is None:
            left = PAGE  # the node that knows has not answered: the request says why
        if not left:
            place.client.ask("GET", "queues", name)  # raises the error if there is no such queue
        while left > 0:
            moved = place.client.ask("POST", "queues", name, "dlq", "replay",
                                     body={"count": min(left, PAGE)})["replayed"]
            yield moved
            left -= moved
            if not moved:
                return
    else:
        chosen = [_named(text) for text in places]
        for at in range(0, len(chosen), PAGE):
            yield place.client.ask("POST", "queues", name, "dlq", "replay",
                                   body={"messages": chosen[at:at + PAGE]})["replayed"]


def _named(text: str) -> tuple[int, int]:
    partition, _, offset = text.rpartition(":")
    if not (text.isascii() and offset.isdigit() and (partition or "0").isdigit()):
        raise click.UsageError(f"a dead letter is PARTITION:OFFSET, not {text!r}")
    return int(partition or 0), int(offset)


@dlq.command("purge")
@click.argument("name")
@yes_option
@asks_queues
def dlq_purge(place: Place, name: str, yes: bool) -> None:
    """Throw away the dead letters of the queue NAME."""
    confirm(yes, f"Throw away all dead letters of {plain(name)}?")
    answer = place.client.ask("POST", "queues", name, "dlq", "purge")
    place.show(answer, lambda: f"{counted(answer['purged'], 'dead letter')} gone from {plain(name)}")
