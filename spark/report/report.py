"""Results as text and as HTML: one, or two beside each other. page.py has the parts of the pages."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fluxmq.spark.measures.breakdown import KINDS, Breakdown
from fluxmq.spark.measures.measures import MEASURES, PERCENTILES, Bucket, Measures
from fluxmq.spark.report.page import (
    STYLES,
    Html,
    Spread,
    Tone,
    bad,
    distribution,
    duration,
    instant,
    over_time,
    page,
    section,
    table,
)
from fluxmq.spark.report.plot import Series
from fluxmq.spark.report.side_by_side import recorded_rows
from fluxmq.spark.report.text import printable
from fluxmq.spark.result import Summary

__all__ = ["Side", "beside", "conditions", "html_report", "latency", "result_page", "text_report"]

US_NS = 1000
BETTER = {"higher": "higher is better", "lower": "lower is better", "zero": "must be 0", "": ""}


@dataclass(slots=True, frozen=True)
class Side:
    """One result. name: its directory."""

    name: str
    summary: Summary
    measures: Measures

    @property
    def state(self) -> str:
        return "complete" if self.summary.complete else f"partial: {self.summary.why or 'it did not end'}"

    def conditions(self) -> list[tuple[str, str]]:
        """The conditions of the measurement."""
        said, broker = self.summary, self.summary.broker
        found = [("Result", self.name), ("State", self.state),
                 ("Broker", " ".join(str(broker[key]) for key in ("name", "version", "address") if broker.get(key))),
                 ("Recording", listed(said.recording)), ("Options", listed(said.options)),
                 ("Started", instant(said.started)), ("Finished", instant(said.finished)),
                 ("Not sent", str(said.not_sent) if said.not_sent else ""),
                 ("Not replayed", ", ".join(f"{count:,} {what}" for what, count in said.not_replayed.items()))]
        return [(name, text or "-") for name, text in found]

    def faults(self) -> list[str]:
        """Measures that should be 0 and are not."""
        return [f"{measure.title.lower()} {figure(name, self.measures.values[name])}"
                for name, measure in MEASURES.items() if faulty(name, self.measures.values[name])]


def listed(words: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in words.items() if value not in (None, ""))


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


# ── parts of pages ───────────────────────────────────────────────────────────────────────────────────────────


NOTHING_WRONG = "no message lost, no duplicate, none out of order, none without acknowledgement"


def verdict(sides: Sequence[Side]) -> tuple[Tone, str]:
    """A verdict on results by themselves: whether they are complete, and which measures should be 0 and are not."""
    said, tone = [], "good"
    for name, side in zip(labels(sides), sides, strict=True):
        faults = side.faults()
        tone = "bad" if faults or tone == "bad" else "good" if side.summary.complete and tone == "good" else "open"
        text = "; ".join([side.state, ", ".join(faults) or NOTHING_WRONG])
        said.append(f"{name}: {text}" if name else text[0].upper() + text[1:])
    return tone, ". ".join(said)  # type: ignore[return-value]


def labels(sides: Sequence[Side]) -> Sequence[str]:
    return "AB" if len(sides) == 2 else ("",)


def measures_table(sides: Sequence[Side]) -> Html:
    rows = []
    for name, measure in MEASURES.items():
        values = [side.measures.values[name] for side in sides]
        cells = [bad(figure(name, value)) if faulty(name, value) else figure(name, value) for value in values]
        if len(sides) == 2:
            cells.append(ratio(*values))
        rows.append([f"{measure.title} ({measure.unit})", *cells, BETTER[measure.better]])
    if len(sides) == 2:
        return table("All measures; the ratio is B / A", ("Measure", "A", "B", "B / A", ""), rows)
    return table("All measures", ("Measure", "", ""), rows)


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


def memory_of(measures: Measures) -> list[tuple[float, float | None]]:
    return list(measures.memory)


def latency(spreads: Sequence[tuple[str, Sequence[Measures]]]) -> Html:
    """The distribution of latencies, of all results of a name together."""
    found = []
    for (name, results), style in zip(spreads, STYLES, strict=False):
        counts: dict[int, int] = {}
        for measures in results:
            for number, count in measures.latencies.items():
                counts[number] = counts.get(number, 0) + count
        found.append(Spread(name, style, counts, US_NS))
    return section("Latency", distribution("latency", "Latency", found, duration))


def beside(side: Side) -> Html:
    """Compares the recording with its replay."""
    rows = [(word, f"{one:,}", f"{other:,}") for word, one, other in recorded_rows(side.summary)]
    caption = "What the recording has, and what came of it"
    return table(caption, ("", "recorded", "replayed"), rows) if rows else Html()


def charts(sides: Sequence[Side]) -> Html:
    def chart(identity: str, title: str, unit: str,
              points: Callable[[Measures], list[tuple[float, float | None]]]) -> Html:
        return over_time(identity, title, unit, [Series(name, style, points(side.measures)) for name, style, side
                                                 in zip(labels(sides), STYLES, sides, strict=False)])

    return section(
        "Over time", chart("throughput", "Throughput over time", "messages/s", per_second),
        *[chart(f"latency-{name}", f"Latency over time, p{100 * part:g}", "µs", latency_of(name))
          for name, part in PERCENTILES.items()],
        chart("cpu", "Broker CPU over time", "% of a processor", cpu_of),
        chart("memory", "Broker memory over time", "MiB", memory_of))


def conditions(sides: Sequence[Side], names: Sequence[str]) -> Html:
    """names: headings of the results in the table."""
    told = [side.conditions() for side in sides]
    rows = [[name, *[one[number][1] for one in told]] for number, (name, _) in enumerate(told[0])]
    return section("Conditions", table("What was measured, and under what", ("", *names), rows, "text"))


def breakdown_tables(found: Breakdown) -> Html:
    def us(value: int | None) -> str:
        return "-" if value is None else duration(value * US_NS)

    parts = []
    for kind, word in KINDS.items():
        shown, number = found.parts[kind], found.number[kind]
        caption = f"By {word}" + (f": the {len(shown)} with the most messages of {number:,}"
                                  if number > len(shown) else "")
        rows = [(one.name, f"{one.published:,}", f"{one.delivered:,}", us(one.p50), us(one.p99)) for one in shown]
        header = (word, "published", "delivered", "latency, p50", "latency, p99")
        parts.append(table(caption, header, rows) if rows else Html())
    return section("By topic, protocol, QoS and client", *parts)


# ── pages ────────────────────────────────────────────────────────────────────────────────────────────────────


def html_report(a: Side, b: Side) -> str:
    """The page of two results beside each other."""
    both = (a, b)
    return page(f"{a.name} and {b.name}", *verdict(both), section("Measures", measures_table(both)),
                latency([("A", [a.measures]), ("B", [b.measures])]), charts(both), conditions(both, "AB"))


def result_page(side: Side, found: Breakdown) -> str:
    """The page of one result."""
    return page(f"replay {side.name}", *verdict([side]), section("Measures", beside(side), measures_table([side])),
                latency([("", [side.measures])]), breakdown_tables(found), charts([side]),
                conditions([side], ("this result",)))


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
