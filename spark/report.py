"""Two results beside each other: one HTML file that needs nothing else, and a few lines of text."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

from fluxmq.spark.measures import MEASURES, PERCENTILES, Bucket, Measures
from fluxmq.spark.plot import Series, line_chart
from fluxmq.spark.profile_text import printable
from fluxmq.spark.result import Summary

__all__ = ["Side", "html_report", "text_report"]

BILLION = 1e9
STYLES = ("a", "b")
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --faint: #6a737d; --rule: #d0d7de;
  --a: #0b5cad; --b: #b3470e; --bad: #b00020; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0f1419; --faint: #9aa4ae; --rule: #38424c;
  --a: #6cb6ff; --b: #ffa657; --bad: #ff7b8a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } .wide { overflow-x: auto; }
caption { text-align: left; color: var(--faint); padding: .3rem 0; }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid var(--rule); vertical-align: top; }
th:first-child, td:first-child, table.said td { text-align: left; } td { overflow-wrap: anywhere; }
figure { margin: 1rem 0; } figcaption { color: var(--faint); }
svg { width: 100%; height: auto; } svg text { fill: var(--faint); font-size: 12px; }
.grid { stroke: var(--rule); stroke-width: 1; }
polyline { fill: none; stroke-width: 2; } polyline.a { stroke: var(--a); }
polyline.b { stroke: var(--b); stroke-dasharray: 6 3; } circle.a { fill: var(--a); } circle.b { fill: var(--b); }
.key { display: inline-block; width: 1.8rem; border-top: 3px solid var(--a); vertical-align: middle; }
.key.b { border-top: 3px dashed var(--b); } .bad { color: var(--bad); font-weight: 600; }
summary { cursor: pointer; color: var(--faint); }
"""


@dataclass(slots=True, frozen=True)
class Side:
    """One of the two. name: the directory of the result."""

    name: str
    summary: Summary
    measures: Measures

    @property
    def state(self) -> str:
        return "complete" if self.summary.complete else f"partial: {self.summary.why or 'it did not end'}"

    def conditions(self) -> list[tuple[str, str]]:
        """What it was measured under."""
        said, broker = self.summary, self.summary.broker
        found = [("Result", self.name), ("State", self.state),
                 ("Broker", " ".join(str(broker[key]) for key in ("name", "version", "address") if broker.get(key))),
                 ("Recording", listed(said.recording)), ("Options", listed(said.options)),
                 ("Started", instant(said.started)), ("Finished", instant(said.finished)),
                 ("Not sent", str(said.not_sent) if said.not_sent else "")]
        return [(name, text or "-") for name, text in found]


def listed(words: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in words.items() if value not in (None, ""))


def instant(ns: int | None) -> str:
    return "" if ns is None else datetime.fromtimestamp(ns / BILLION, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if MEASURES[name].unit == "messages":
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def ratio(a: float | None, b: float | None) -> str:
    return f"{b / a:.3f}" if a and b is not None else "-"


def faulty(name: str, value: float | None) -> bool:
    return MEASURES[name].better == "zero" and bool(value)


def table(caption: str, header: Iterable[str], rows: Iterable[Iterable[str]], kind: str = "") -> str:
    """Cells are HTML already."""
    lines = [f'<div class="wide"><table class="{kind}"><caption>{escape(caption)}</caption>',
             "<thead><tr>" + "".join(f'<th scope="col">{cell}</th>' for cell in header) + "</tr></thead><tbody>"]
    for first, *rest in rows:
        lines.append(f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def measures_table(a: Side, b: Side) -> str:
    def cell(name: str, value: float | None) -> str:
        text = figure(name, value)
        return f'<span class="bad">{text}</span>' if faulty(name, value) else text

    rows = [(escape(f"{m.title} ({m.unit})"), cell(name, a.measures.values[name]), cell(name, b.measures.values[name]),
             ratio(a.measures.values[name], b.measures.values[name]),
             {"higher": "higher is better", "lower": "lower is better", "zero": "must be 0", "": ""}[m.better])
            for name, m in MEASURES.items()]
    return table("All measures; the ratio is B / A", ("Measure", "A", "B", "B / A", ""), rows)


def over_time(identity: str, title: str, unit: str, sides: tuple[Side, Side],
              points: Callable[[Measures], list[tuple[float, float | None]]]) -> str:
    """A chart of both sides with its table."""
    found = [points(side.measures) for side in sides]
    chart = line_chart(identity, title, "s", unit, [Series(name, style, got)
                                                    for name, style, got in zip("AB", STYLES, found, strict=True)])
    rows = []
    for number in range(max(map(len, found))):
        cells: list[str] = []
        for got in found:
            here = got[number] if number < len(got) else None
            cells += ["-", "-"] if here is None else [f"{here[0]:.3f}", "-" if here[1] is None else f"{here[1]:,.4g}"]
        rows.append([str(number + 1), *cells])
    figures = table(f"{title}, {unit}", ("", "A: s", f"A: {escape(unit)}", "B: s", f"B: {escape(unit)}"), rows)
    return (f'<figure><figcaption><strong>{escape(title)}</strong>, {escape(unit)}: <span class="key"></span> A '
            f'<span class="key b"></span> B</figcaption>\n{chart}\n'
            f"<details><summary>The figures</summary>\n{figures}</details></figure>")


def per_second(measures: Measures) -> list[tuple[float, float | None]]:
    """Deliveries a second of each bucket, or publishes where nothing was delivered at all."""
    buckets = measures.buckets
    if not buckets:
        return []
    width = buckets[1].second - buckets[0].second if len(buckets) > 1 else measures.values["window_s"] or 0
    ends = [after.second for after in buckets[1:]] + [measures.values["window_s"] or 0]
    counts = [bucket.delivered if measures.values["delivered"] else bucket.published for bucket in buckets]
    # The last bucket is cut off by the end of the window.
    return [(bucket.second, count / min(width, end - bucket.second) if min(width, end - bucket.second) > 0 else None)
            for bucket, count, end in zip(buckets, counts, ends, strict=True)]


def latency_of(name: str) -> Callable[[Measures], list[tuple[float, float | None]]]:
    def points(measures: Measures) -> list[tuple[float, float | None]]:
        def value(bucket: Bucket) -> float | None:
            return bucket.latency[name]

        return [(bucket.second, value(bucket)) for bucket in measures.buckets]

    return points


def cpu_of(measures: Measures) -> list[tuple[float, float | None]]:
    return [(second, 100 * share) for second, share in measures.cpu]


def html_report(a: Side, b: Side) -> str:
    """The whole page."""
    both = (a, b)
    conditions = [(name, escape(one), escape(other))
                  for (name, one), (_, other) in zip(a.conditions(), b.conditions(), strict=True)]
    charts = [over_time("throughput", "Throughput over time", "messages/s", both, per_second)]
    charts += [over_time(f"latency-{name}", f"Latency over time, {100 * part:g} %", "µs", both, latency_of(name))
               for name, part in PERCENTILES.items()]
    charts.append(over_time("cpu", "Broker CPU over time", "% of a processor", both, cpu_of))
    partial = [side.name for side in both if not side.summary.complete]
    warning = f'<p class="bad">Partial: {escape(", ".join(partial))}</p>' if partial else ""
    return "\n".join([
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>FluxMQ replay: {escape(a.name)} and {escape(b.name)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
        f"<main>\n<h1>Two replays</h1>\n<p>A: {escape(a.name)}<br>B: {escape(b.name)}</p>{warning}",
        f"<h2>Measures</h2>\n{measures_table(a, b)}",
        f"<h2>Over time</h2>\n{chr(10).join(charts)}",
        "<h2>Conditions</h2>", table("What each was measured under", ("", "A", "B"), conditions, "said"),
        "</main>\n</body>\n</html>\n"])


def text_report(a: Side, b: Side) -> str:
    """A table for a terminal."""
    rows = [("", "A", "B", "B / A", "")]
    for name, measure in MEASURES.items():
        one, other = a.measures.values[name], b.measures.values[name]
        rows.append((f"{measure.title} ({measure.unit})", figure(name, one), figure(name, other), ratio(one, other),
                     "must be 0" if faulty(name, one) or faulty(name, other) else ""))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = [f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}  {row[4]}"
             .rstrip() for row in rows]
    said = [printable(f"{letter}: {side.name}" + ("" if side.summary.complete else f" ({side.state})"))
            for letter, side in (("A", a), ("B", b))]
    return "\n".join([*said, "", *lines])
