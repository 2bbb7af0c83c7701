"""The results of a comparison as plain text or Markdown."""
from __future__ import annotations

import statistics
from typing import Any

from fluxmq.bench.load.machine import describe
from fluxmq.bench.load.parts import METRICS

__all__ = ["render", "render_load", "render_many", "render_storm"]

GENERATOR_BUSY = 0.95  # of a processor
HEADER = ("work", "ours", "theirs", "ratio (min..max)", "goal", "", "CPU µs/msg ours, theirs", "p50/p99 µs ours",
          "p50/p99 µs theirs")


def number(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 10_000:
        return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value / 1e3:.0f} k"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def columns(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                     for row in rows)


def markdown(rows: list[tuple[str, ...]]) -> str:
    head, *rest = ["| " + " | ".join(cell for cell in row) + " |" for row in rows]
    return "\n".join([head, "|---" * len(rows[0]) + "|", *rest])


def goal_lines(row: dict[str, Any]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for goal in row["goals"]:
        metric, of, to = goal["metric"], row["medians"][goal["of"]], row["medians"].get(goal["to"]) or {}
        label = row["work"] if not lines else ""
        note = METRICS[metric][1]
        if goal["to"] not in (None, "theirs"):
            note = f"{note} against {goal['to']}".strip()
        ratio = "-" if "median" not in goal else (
            f"{goal['median']:.2f} ({goal['min']:.2f}..{goal['max']:.2f})" if goal["to"]
            else f"{number(goal['median'])} ({number(goal['min'])}..{number(goal['max'])})")
        verdict = {None: "not measured", True: "met", False: "missed"}[goal["met"]]
        theirs = row["medians"].get("theirs") or {}
        ours = row["medians"]["ours"]
        tail = ("", "", "") if lines else (
            f"{number(ours['cpu'])}, {number(theirs.get('cpu'))}",
            f"{number(ours['p50'])}/{number(ours['p99'])}",
            f"{number(theirs.get('p50'))}/{number(theirs.get('p99'))}")
        other = to.get(metric) if goal["to"] else theirs.get(metric)
        lines.append((f"{label}{': ' if label and note else '  ' if note else ''}{note}", number(of[metric]),
                      number(other), ratio, goal["goal"], verdict, *tail))
    return lines


def notes(row: dict[str, Any]) -> list[str]:
    """What a reader must know about a row's figures: who was the limit, and what went wrong."""
    found = []
    for side in row["medians"]:
        runs = [figures[side] for figures in row["rounds"] if side in figures]
        shares = [run["generator_cpu_share"] for run in runs if "generator_cpu_share" in run]
        if shares and statistics.median(shares) >= GENERATOR_BUSY:
            found.append(f"{row['key']}: {side}: the generator was the limit ({100 * statistics.median(shares):.0f} % "
                         "of its processor)")
        for fault in ("lost", "duplicates", "reordered", "foreign", "refused", "stalls", "overruns"):
            count = sum(run.get("total", {}).get(fault, 0) for run in runs)
            if count:
                found.append(f"{row['key']}: {side}: {count:,} {fault}")
        closed = sum(run.get("closed_while_idle", 0) for run in runs)
        if closed:
            found.append(f"{row['key']}: {side}: {closed:,} connections closed while idle")
    return found + [f"{row['key']}: {side}: {why}" for side, why in row["errors"].items()]


def render(results: dict[str, Any], as_markdown: bool = False) -> str:
    """The whole table, with the machine above it and what to know about the figures below."""
    settings = results["settings"]
    lines: list[tuple[str, ...]] = [HEADER]
    for row in results["rows"]:
        lines += goal_lines(row)
    theirs = sorted({row.get("brokers", {}).get("theirs", settings["theirs"]) for row in results["rows"]})
    said = [note for row in results["rows"] for note in notes(row)]
    parts = [describe(results["machine"]),
             f"{settings['rounds']} × {settings['duration']:g} s, ours: {settings['ours']}, theirs: "
             f"{' or '.join(theirs)}, {'one processor each' if results['pinned'] else 'not pinned'}",
             "", markdown(lines) if as_markdown else columns(lines)]
    if said:
        parts += ["", "Notes:", *([""] + [f"- {note}" for note in said] if as_markdown else said)]
    return "\n".join(parts)


def latency_line(name: str, latency: dict[str, float] | None) -> list[str]:
    if not latency:
        return []
    return [f"{name:<11}" + "  ".join(f"{key} {latency[key]:,.1f}" for key in ("p50", "p90", "p99", "p99.9", "max"))
            + " µs"]


def render_load(figures: dict[str, Any]) -> str:
    """The figures of one run."""
    total = figures["total"]
    lines = [f"sent       {figures['sent_per_second']:,.0f}/s",
             f"delivered  {figures['delivered_per_second']:,.0f}/s over {figures['seconds']:.2f} s"]
    lines += latency_line("latency", figures["latency_us"]) + latency_line("ack", figures["ack_latency_us"])
    lines.append(f"whole run  {total['sent']:,} sent, {total['delivered']:,} of {total['expected']:,} delivered, "
                 f"{total['lost']:,} lost, {total['duplicates']:,} duplicates, {total['reordered']:,} out of order")
    for key, what in (("foreign", "deliveries to no subscription of this run"), ("refused", "refused by reason code"),
                      ("stalls", "pauses without any progress"),
                      ("overruns", "not sent: the broker's backlog was full")):
        if total[key]:
            lines.append(f"           {total[key]:,} {what}")
    if not figures["checked"]:
        lines.append("           payloads below 16 bytes carry no numbers: order and latency are not known")
    if figures.get("broker_cpu_us_per_message") is not None:
        lines.append(f"broker     {figures['broker_cpu_us_per_message']:.3f} µs CPU per message, "
                     f"{100 * figures['broker_cpu_share']:.0f} % of a processor, "
                     f"{figures['broker_memory']['rss'] / 2**20:.1f} MiB resident, "
                     f"{figures['broker_memory']['peak'] / 2**20:.1f} MiB max")
    lines.append(f"generator  {100 * figures['generator_cpu_share']:.0f} % of a processor")
    return "\n".join(lines)


def render_backlog(figures: dict[str, Any]) -> str:
    """The figures of one backlog."""
    mib = {key: value / 2**20 for key, value in figures.items() if key.startswith("rss_")}
    return "\n".join([
        f"filled     {figures['messages']:,} {figures['kind']} messages of {figures['size']} bytes, "
        f"{figures['fill_per_second']:,.0f}/s",
        f"memory     {figures['bytes_per_message']:.1f} bytes per message; {mib['rss_empty']:.1f} MiB empty, "
        f"{mib['rss_light']:.1f} with a tenth, {mib['rss_full']:.1f} with all, {mib['rss_peak']:.1f} max",
        f"restart    {figures['restart_seconds']:.2f} s after a {figures['restart']}, "
        f"{figures['start_seconds_empty']:.2f} s of them also when empty",
        f"memory     {figures['bytes_per_message_restarted']:.1f} bytes per message; {mib['rss_restarted']:.1f} MiB, "
        f"{mib['rss_restarted_peak']:.1f} max"])


def render_many(figures: dict[str, Any]) -> str:
    """The figures of many of something."""
    lines = [f"{figures['count']:,} {figures['kind']}",
             f"memory     {figures['bytes_each']:,.0f} bytes each, {figures['bytes_each_restarted']:,.0f} restarted, "
             f"{figures['rss_peak'] / 2**20:.1f} MiB max, {figures['rss_restarted_peak'] / 2**20:.1f} after it",
             f"start      {figures['start_seconds']:.2f} s, {figures['start_seconds_used']:.2f} s when all was used, "
             f"{figures['start_seconds_empty']:.2f} s empty"]
    lines += [f"{name:18} {each['seconds']:8.2f} s, a bystander waits {each['longest_wait'] * 1000:8.1f} ms max"
              for name, each in figures["phases"].items()]
    return "\n".join(lines)


def render_storm(figures: dict[str, Any]) -> str:
    """The figures of one storm."""
    lines = [f"opened     {figures['connections']:,} connections in {figures['seconds']:.2f} s, "
             f"{figures['per_second']:,.0f}/s",
             *latency_line("CONNACK", figures["latency_us"])]
    if figures["closed_while_idle"]:
        lines.append(f"           {figures['closed_while_idle']:,} closed by the broker while idle")
    weight = figures.get("broker_memory")
    if weight:
        lines.append(f"broker     {weight['bytes_per_connection']:,.0f} bytes per connection, "
                     f"{weight['rss_all'] / 2**20:.1f} MiB resident, {weight['peak'] / 2**20:.1f} MiB max")
    return "\n".join(lines)
