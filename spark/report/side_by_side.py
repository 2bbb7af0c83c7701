"""Counts of a recording and of its replay in two columns; CPU and memory of the broker."""
from __future__ import annotations

from fluxmq.spark.result import Summary

__all__ = ["SIDES", "broker_used", "recorded_nodes", "recorded_rows", "side_by_side"]

MIB = 1 << 20

# event of the result: label
SIDES = {"publish": "publishes", "delivery": "deliveries", "settlement": "settled in queues"}


def recorded_rows(summary: Summary) -> list[tuple[str, int, int]]:
    """(label, recorded, replayed). Empty for results of an earlier version, which have no such counts."""
    if not summary.recorded:
        return []
    rows = [(word, summary.recorded.get(event, 0), summary.counts.get(event, 0)) for event, word in SIDES.items()]
    return [row for row in rows if row[1] or row[2]]


def side_by_side(summary: Summary) -> list[str]:
    """The counts of the recording and of the replay, as text."""
    rows = recorded_rows(summary)
    if not rows:
        return []
    wide = max(len("replayed"), *(len(f"{number:,}") for row in rows for number in row[1:]))
    return [f"  {'':<20} {'recorded':>{wide}} {'replayed':>{wide}}",
            *(f"  {word:<20} {recorded:>{wide},} {replayed:>{wide},}" for word, recorded, replayed in rows)]


def recorded_nodes(summary: Summary) -> list[str]:
    """Lines of text about the nodes of a cluster that were recorded; none for a recording by itself."""
    about = summary.recording
    if "nodes" not in about:
        return []
    line = f"recorded on {', '.join(about['nodes'])}: clients moved from one to another {about['moves']:,} times"
    if about["overlap_ns"]:
        line += f"; to keep the order of their operations, some came up to {about['overlap_ns'] / 1e6:,.1f} ms later"
    return [line] + ([f"no recording of {', '.join(about['missing'])}: what its clients did is missing"]
                     if about["missing"] else [])


def broker_used(summary: Summary) -> list[str]:
    """Lines of text; none if the broker was not on this machine, or its process is not accessible."""
    parts = []
    if len(summary.cpu) > 1:
        parts.append(f"{summary.cpu[-1][1] - summary.cpu[0][1]:.2f} s on CPU")
    if summary.memory:
        sizes = [size / MIB for _, size in summary.memory]
        parts.append(f"{max(sizes):.1f} MiB of memory max, {sizes[-1]:.1f} at the end")
    return [f"the broker used {', '.join(parts)}"] if parts else []
