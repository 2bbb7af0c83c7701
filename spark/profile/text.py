"""The report of `profile` as text. One function for each part; all numbers come from summary.summary()."""
from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fluxmq.spark.report.text import count_text, printable, seconds_text, size_text

__all__ = ["text"]

BARS = " ▁▂▃▄▅▆▇█"


def _ns(number: float) -> str:
    for bound, unit in ((1e3, "ns"), (1e6, "us"), (1e9, "ms")):
        if number < bound:
            return f"{number / bound * 1e3:.3g} {unit}"
    return f"{number / 1e9:,.3g} s"


def _when(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _spread(found: dict[str, Any], shown: Any) -> str:
    """quantiles() as "min 1, p50 3, p90 5, …"."""
    if not found:
        return "none"
    named = {"min": "min", "p50": "p50", "p90": "p90", "p99": "p99", "p99.9": "p99.9", "max": "max"}
    return ", ".join(f"{name} {shown(found[key])}" for key, name in named.items() if found.get(key) is not None)


def _table(rows: list[list[str]], indent: str = "  ") -> list[str]:
    """The last column to the left, all others to the right."""
    if not rows:
        return [indent + "none"]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [indent + "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)),
                                printable(row[-1])]) for row in rows]


def course(values: list[int]) -> str:
    """A bar for each value."""
    highest = max(values, default=0)
    return "".join(BARS[-(-value * (len(BARS) - 1) // highest)] if highest else BARS[0] for value in values)


def _head(found: dict[str, Any], about: dict[str, Any]) -> list[str]:
    lines = [f"recording {about['path']}: {printable(about['broker'])}, {about['source']}, "
             f"{count_text(about['parts'])} part{'s' if about['parts'] != 1 else ''}, {size_text(about['file_bytes'])}"]
    if about["end"] != "stopped":
        lines.append(f"it ended by: {about['end'] or 'nothing that was written down (it runs, or was cut off)'}")
    if found["rows"]:
        seconds = (found["last"] - found["first"]) / 1e9
        lines += [f"{_when(found['first'])} to {_when(found['last'])}: {seconds_text(seconds)}",
                  f"{count_text(found['rows'])} rows, {size_text(found['bytes'])} of packets"]
    lost = max(found.get("lost_entries", 0), about["lost_entries"])
    if lost:
        lines.append(f"lost while recording: {count_text(lost)} entries, "
                     f"{size_text(max(found.get('lost_bytes', 0), about['lost_bytes']))}")
    return lines


def _rates(found: dict[str, Any]) -> list[str]:
    over = found["over_time"]
    lines = ["", f"Rates, per second (of {count_text(over['seconds'])} seconds)"]
    for name, title in (("published", "published"), ("delivered", "delivered"), ("bytes", "bytes")):
        shown = size_text if name == "bytes" else count_text
        lines.append(f"  {title}: mean {shown(over[name]['mean'])}, {_spread(over[name], shown)}")
    for name in ("published", "delivered"):
        if over[name]["max"]:
            lines.append(f"  {name} over time, {seconds_text(over['step_s'])} each: |{course(over[name]['course'])}|")
    storms = over["storms"]
    if storms["seconds"]:
        worst = ", ".join(f"{count_text(one['opened'])} in the second from {_when(one['second'] * 10**9)}"
                          for one in storms["worst"])
        lines.append(f"  connection storms: {count_text(storms['seconds'])} seconds; {worst}")
    return lines


def _kinds(found: dict[str, Any]) -> list[str]:
    rows = []
    for one in found["kinds"]:
        protocol = " ".join(str(part) for part in (one["protocol"], one["version"]) if part is not None) or "-"
        qos = "" if one["qos"] is None else f", QoS {one['qos']}"
        name = " ".join(part for part in (protocol, one["direction"], one["kind"]) if part)
        rows.append([count_text(one["rows"]), size_text(one["bytes"]), name + qos])
    return ["", "Rows by kind", *_table(rows)]


def _heat(one: dict[str, Any]) -> list[str]:
    return [count_text(one["published"]), count_text(one["delivered"]),
            size_text(one["published_bytes"] + one["delivered_bytes"])]


def _topics(found: dict[str, Any]) -> list[str]:
    lines = ["", f"Topics: {count_text(found['topics'])}"]
    fan_out = found["fan_out"]
    if fan_out:
        overall = f"{fan_out['overall']:.3g} deliveries for a publish" if "overall" in fan_out else "nothing published"
        lines.append(f"  fan-out: {overall}; by the topic of each publish: {_spread(fan_out, count_text)}")
    for title, key in (("hottest topics", "hottest"), ("largest topics", "largest")):
        lines += [f"  {title}: published, delivered, bytes", *_table([
            [*_heat(one), one["topic"]] for one in found[key]], "    ")]
    for level, trees in found["subtrees"].items():
        if trees:
            lines += [f"  hottest subtrees, level {level}: topics, published, delivered, bytes", *_table([
                [count_text(one["topics"]), *_heat(one), one["subtree"]] for one in trees], "    ")]
    return lines


def _clients(found: dict[str, Any]) -> list[str]:
    lines = ["", f"Clients: {count_text(found['clients'])}, in {count_text(found['connections'])} connections"]
    for title, key in (("what they do", "role"), ("messages per second", "rate_class"), ("mean payload", "size_class")):
        lines += [f"  {title}: clients, published, delivered", *_table([
            [count_text(one["clients"]), count_text(one["published"]), count_text(one["delivered"]), one["class"]]
            for one in found[key]], "    ")]
    lines.append(f"  lifetimes of the {count_text(found['ended_within'])} connections that began and ended in it: "
                 f"{_spread(found['lifetime_s'], seconds_text)}")
    lines += ["  busiest: published, delivered, per second", *_table([
        [count_text(one["published"]), count_text(one["delivered"]), f"{one['rate']:.3g}", one["client"]]
        for one in found["busiest"]], "    ")]
    return lines


def text(found: dict[str, Any], about: dict[str, Any]) -> str:
    """found: summary(); about: information from the manifest (command.py)."""
    lines = _head(found, about)
    if not found["rows"]:
        return "\n".join([*lines, "it has no rows"])
    lines += _rates(found) + _kinds(found)
    lines += ["", "Payloads", *[f"  {name}: {_spread(found['size'][name], size_text)}" for name in ("in", "out")]]
    lines += ["", "From a packet to its acknowledgement"]
    lines += [f"  {name}: {_spread(one, _ns)}" for name, one in found["ack_latency_ns"].items()] or ["  none"]
    return "\n".join(lines + _topics(found) + _clients(found))
