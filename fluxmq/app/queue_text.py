"""How `fluxmq queue` shows to people what the admin API answers: tables, messages, one queue in full.

What comes from clients (names, topics, payloads) is printed with its control characters escaped: a message must not be
able to move a terminal's cursor. A table takes ten lines, for which rich would be one more dependency.
"""
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fluxmq._core.queue.lanes import OFFSET_MASK

__all__ = ["as_groups", "as_message", "as_queue", "as_table", "as_time", "counted", "in_use", "plain"]


def plain(value: Any) -> str:
    """A value on one line, with control characters escaped."""
    if value is None or value == "":
        return "-"
    text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(number: int, what: str) -> str:
    """A subject with its verb: "1 message is", "2 messages are"."""
    return f"{number} {what} is" if number == 1 else f"{number} {what}s are"


def in_use(queues: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without those of the broker itself that have nothing in them, as for a list of queues."""
    return [one for one in queues if one["messages"] or not one.get("internal")]


def as_time(ms: Any) -> str:
    if not isinstance(ms, int | float) or ms <= 0:
        return "-"
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError):  # years outside of the calendar, from a wrong clock
        return f"{ms} ms"


def as_table(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> str:
    """columns: key of a row -> title, in order. Numbers are right-aligned, also where some are not known; keys ending
    in _ms are times."""
    cells = [list(columns.values())]
    for row in rows:
        cells.append([as_time(row.get(key)) if key.endswith("_ms") else plain(row.get(key)) for key in columns])
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    right = [not key.endswith("_ms") and any(isinstance(row.get(key), int) for row in rows)
             and all(isinstance(row.get(key), int | None) for row in rows) for key in columns]
    return "".join("  ".join(cell.rjust(width) if numeric else cell.ljust(width) for cell, width, numeric
                             in zip(line, widths, right, strict=True)).rstrip() + "\n" for line in cells)


def as_message(message: dict[str, Any], *, properties: bool = False) -> str:
    """One line: partition and offset, time, topic, payload; then, if requested, a line per property."""
    payload = message.get("payload", "")
    shown = plain(payload) if message.get("encoding") != "base64" else f"base64:{payload}"
    lines = [f"{message.get('partition', 0)}:{message.get('offset', 0)}  {as_time(message.get('time_ms'))}  "
             f"{place_of(message)}  {shown if payload else ''}".rstrip()]
    if properties:
        pairs = [*message.get("properties", {}).items(), *message.get("user_properties", [])]
        lines += [f"    {plain(name)}: {plain(value)}" for name, value in pairs]
    return "\n".join(lines)


def place_of(message: dict[str, Any]) -> str:
    """Where it was published: its topic, or exchange and routing key if it came by AMQP."""
    properties = message.get("properties", {})
    if "exchange" not in properties:
        return plain(message.get("topic"))
    return f"{plain(properties['exchange'] or '(default)')}:{plain(properties.get('routing-key'))}"


def as_queue(queue: dict[str, Any]) -> str:
    """Everything about one queue."""
    out = [f"{plain(queue.get('name'))}  ({plain(queue.get('type'))})"]
    for key in ("node", "replication_group", "state", "damage", "messages", "ready", "unsettled", "delayed", "bytes",
                "consumers", "dead_letters", "dead_letter_queue"):
        if queue.get(key) not in (None, ""):
            out.append(f"  {key.replace('_', ' ')}: {plain(queue[key])}")
    counts = queue.get("counts")
    if isinstance(counts, dict):
        # the counts that always matter, and others that are not 0
        shown = [(key, number) for key, number in counts.items()
                 if number or key in ("appended", "delivered", "settled")]
        out += ["", "since the queue was created or the broker started"]
        out += [f"  {plain(key).replace('_', ' ')}: {plain(number)}" for key, number in shown]
    amqp = queue.get("amqp")
    if isinstance(amqp, dict):
        out += ["", "as an AMQP client declared it"]
        out += [f"  {plain(key)}: {plain(value)}" for key, value in _flat(amqp)]
    spec = queue.get("spec")
    if isinstance(spec, dict):
        out += ["", "as configured" if amqp is None else "which means"]
        # an AMQP queue has these settings in its arguments
        unsaid = ("retry.", "dlq.") if amqp is not None else ()
        out += [f"  {plain(key)}: {plain(value)}" for key, value in _flat(spec)
                if key not in ("name", "type") and not key.startswith(unsaid)]
    text = "\n".join(out) + "\n"
    if queue.get("partition_list"):
        text += "\n" + as_table(queue["partition_list"], {"partition": "PARTITION", "first": "FIRST", "next": "NEXT",
                                                          "messages": "MESSAGES", "bytes": "BYTES",
                                                          **({"node": "NODE"} if "node" in queue["partition_list"][0]
                                                             else {})})
    if queue.get("group_list"):
        text += "\n" + as_groups(queue["group_list"])
    return text


def limited_in(groups: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each consumer that gets no more messages until it settles some."""
    return [f"{plain(member.get('client') or 'a consumer')} of group {plain(group.get('name'))} has "
            f"{plain(member.get('held'))} unsettled messages and gets no more until it settles some: set a prefetch"
            for group in groups for member in group.get("members") or [] if member.get("limited")]


def as_groups(groups: Sequence[dict[str, Any]]) -> str:
    rows = []
    for group in groups:
        name = f"{group.get('name')}/{group['filter']}" if group.get("filter") else group.get("name")
        retry = group.get("retry")
        rows.append({**group, "name": name, "retries": (retry["max_retries"] or "any number") if retry else "-",
                     "backoff": "{initial_backoff} x{multiplier:g} to {max_backoff}".format(**retry) if retry else "-",
                     "members": len(group.get("members") or []), "next": _places(group.get("positions") or [])})
    heads = {"name": "GROUP", "members": "MEMBERS", "unsettled": "UNSETTLED", "returned": "RETURNED", "lag": "LAG",
             "next": "NEXT"}
    if any(group.get("retry") for group in groups):  # a stream does not redeliver
        heads |= {"retries": "RETRIES", "backoff": "BACKOFF"}
    members = [{"name": row["name"], **member, "oldest": _age(member.get("oldest_s"))}
               for row, group in zip(rows, groups, strict=True) for member in group.get("members") or []]
    text = as_table(rows, heads)
    if members:
        text += "\n" + as_table(members, {"name": "GROUP", "client": "CONSUMER", "held": "UNSETTLED",
                                          "oldest": "OLDEST"})
    return text + "".join(f"\n{line}\n" for line in limited_in(groups))


def _places(positions: Sequence[dict[str, Any]]) -> str:
    """The next message of each partition, and of each of its priorities: 0:17 1:9, or 0/p4:17 0/p0:3."""
    ranked = any(place.get("priority") for place in positions)
    return " ".join(f"{place.get('partition')}{'/p' + str(place.get('priority')) if ranked else ''}:"
                    f"{place.get('next', 0) & OFFSET_MASK}"
                    for place in sorted(positions, key=lambda place: (place.get("partition", 0),
                                                                      -place.get("priority", 0))))


def _age(seconds: int | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _flat(spec: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in spec.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, ", ".join(map(str, value)) if isinstance(value, list) else value))
    return found
