"""The parts of every HTML report: the page with its verdict, tables, charts, distributions; and the option --html.

A report is one file that needs nothing else: no scripts, no fonts, no network; light and dark as the reader's system
is. Names in it come from recordings, so from clients that chose them as they liked: whatever is not `Html` is escaped.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Literal

import click

from fluxmq.spark.measures.buckets import bucket_edge
from fluxmq.spark.report.plot import Series, line_chart, short
from fluxmq.spark.report.text import printable
from fluxmq.spark.result import ResultError

__all__ = ["STYLES", "Html", "Spread", "Tone", "bad", "check_empty", "check_place", "distribution", "duration",
           "html_option", "instant", "over_time", "page", "section", "table", "write_page"]

BILLION = 1e9
STYLES = ("a", "b")
Tone = Literal["good", "bad", "open"]
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --faint: #6a737d; --rule: #d0d7de;
  --a: #0b5cad; --b: #b3470e; --bad: #b00020; --good: #1a7f37; --open: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0f1419; --faint: #9aa4ae; --rule: #38424c;
  --a: #6cb6ff; --b: #ffa657; --bad: #ff7b8a; --good: #56d364; --open: #e3b341; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; overflow-wrap: anywhere; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.verdict { border-left: .4rem solid; padding: .3rem 1rem; font-size: 1.15rem; font-weight: 600; }
.verdict.good { color: var(--good); } .verdict.bad { color: var(--bad); } .verdict.open { color: var(--open); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; margin-bottom: 1.2rem; }
caption { text-align: left; color: var(--faint); padding: .3rem 0; }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid var(--rule); vertical-align: top; }
th:first-child, td:first-child, table.text td { text-align: left; } th, td { overflow-wrap: anywhere; }
figure { margin: 1rem 0; } figcaption { color: var(--faint); }
svg { width: 100%; height: auto; } svg text { fill: var(--faint); font-size: 12px; }
.grid { stroke: var(--rule); stroke-width: 1; }
polyline { fill: none; stroke-width: 2; } polyline.a { stroke: var(--a); }
polyline.b { stroke: var(--b); stroke-dasharray: 6 3; } circle.a { fill: var(--a); } circle.b { fill: var(--b); }
.key { display: inline-block; width: 1.8rem; border-top: 3px solid var(--a); vertical-align: middle; }
.key.b { border-top: 3px dashed var(--b); } .bad { color: var(--bad); font-weight: 600; }
summary { cursor: pointer; color: var(--faint); }
"""


class Html(str):
    """Text that is HTML already, and goes into a page as it is."""

    __slots__ = ()


def _html(text: str) -> Html:
    return text if isinstance(text, Html) else Html(escape(printable(text)))


def bad(text: str) -> Html:
    """A text highlighted as a fault."""
    return Html(f'<span class="bad">{_html(text)}</span>')


def page(title: str, tone: Tone, verdict: str, *parts: Html) -> str:
    """The whole file. verdict: one sentence at the top. parts: section()."""
    return "\n".join([
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>FluxMQ: {_html(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
        f'<main>\n<h1>{_html(title)}</h1>\n<p class="verdict {tone}">{_html(verdict)}</p>',
        *parts, "</main>\n</body>\n</html>\n"])


def section(heading: str, *parts: Html) -> Html:
    """Empty if it has no parts."""
    kept = [part for part in parts if part]
    return Html("\n".join([f"<h2>{_html(heading)}</h2>", *kept])) if kept else Html()


def table(caption: str, header: Iterable[str], rows: Iterable[Iterable[str]], kind: str = "") -> Html:
    """The first column names the row. kind: `text` if the cells are words."""
    lines = [f'<div class="wide"><table class="{kind}"><caption>{_html(caption)}</caption>',
             "<thead><tr>" + "".join(f'<th scope="col">{_html(cell)}</th>' for cell in header)
             + "</tr></thead><tbody>"]
    for first, *rest in rows:
        lines.append(f'<tr><th scope="row">{_html(first)}</th>'
                     + "".join(f"<td>{_html(cell)}</td>" for cell in rest) + "</tr>")
    return Html("\n".join([*lines, "</tbody></table></div>"]))


def _figure(title: str, unit: str, series: Sequence[Series], chart: str, figures: Html) -> Html:
    keys = " ".join(f'<span class="key {one.style}"></span> {_html(one.name)}' for one in series if one.name)
    below = f"<details><summary>The figures</summary>\n{figures}</details>" if figures else ""
    return Html(f"<figure><figcaption><strong>{_html(title)}</strong>, {_html(unit)}{': ' if keys else ''}{keys}"
                f"</figcaption>\n{chart}\n{below}</figure>")


def _named(name: str, what: str) -> str:
    return f"{name}: {what}" if name else what


def over_time(identity: str, title: str, unit: str, series: Sequence[Series], across: str = "s") -> Html:
    """A chart over seconds, with its table. identity: unique in the page. across: the unit of the axis, if it is not
    seconds but a count of something."""
    whole = across != "s"
    rows = []
    for number in range(max(len(one.points) for one in series)):
        cells: list[str] = []
        for one in series:
            x, y = one.points[number] if number < len(one.points) else (None, None)
            cells += ["-" if x is None else f"{x:.0f}" if whole else f"{x:.3f}", "-" if y is None else f"{y:,.4g}"]
        rows.append([str(number + 1), *cells])
    header = ["", *[_named(one.name, what) for one in series for what in (across, unit)]]
    return _figure(title, unit, series, line_chart(identity, title, across, unit, series),
                   table(f"{title}, {unit}", header, rows))


# ── distributions ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, frozen=True)
class Spread:
    """A distribution. counts: number of a bucket (buckets.py) → how many. scale: what a value of 1 is in the unit
    that the axis counts in, such as 1000 for µs on an axis of ns."""

    name: str
    style: str
    counts: Mapping[int, int]
    scale: float = 1.0


def distribution(identity: str, title: str, spreads: Sequence[Spread], shown: Callable[[float], str]) -> Html:
    """A histogram and a cumulative distribution, both over a logarithmic axis, with the counts as a table. shown: a
    value of the axis as text. identity: unique in the page."""
    steps, sums, rows = [], [], []
    for one in spreads:
        total, below, step, up = sum(one.counts.values()), 0, [], []
        for number in range(min(one.counts, default=0), max(one.counts, default=-1) + 1):
            count = one.counts.get(number, 0)
            low, high = bucket_edge(number) * one.scale, bucket_edge(number + 1) * one.scale
            up.append((low, 100 * below / total))
            below += count
            step += [(low, 100 * count / total), (high, 100 * count / total)]
            if count:
                rows.append([_named(one.name, f"{shown(low)} to {shown(high)}"), f"{count:,}",
                             f"{100 * count / total:.3g} %", f"{100 * below / total:.6g} %"])
        if step:
            step, up = [(step[0][0], 0.0), *step, (step[-1][0], 0.0)], [*up, (step[-1][0], 100.0)]
        steps.append(Series(one.name, one.style, step))
        sums.append(Series(one.name, one.style, up))
    figures = table(title, ("from .. to", "count", "share", "up to here"), rows)
    return Html("\n".join(_figure(f"{title}, {kind}", "%", series, line_chart(
        f"{identity}-{number}", f"{title}, {kind}", "", "%", series, across=shown), figures if number else Html())
        for number, (kind, series) in enumerate((("histogram", steps), ("cumulative", sums)))))


# ── figures as text ──────────────────────────────────────────────────────────────────────────────────────────


def instant(ns: int | None) -> str:
    return "" if ns is None else datetime.fromtimestamp(ns / BILLION, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(ns: float) -> str:
    for bound, unit in ((1e3, "ns"), (1e6, "µs"), (1e9, "ms")):
        if ns < bound:
            return f"{ns / bound * 1e3:.3g} {unit}"
    return f"{short(ns / BILLION)} s"


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────


def html_option(*aliases: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option --html of a command; aliases: other names of it."""
    return click.option("--html", *aliases, "html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                        help="Write a report with plots to this file, too.")


def check_place(path: Path | None) -> None:
    """Raises ResultError if no file can be made there, before minutes of work would be lost."""
    if path is None:
        return
    try:
        path.exists()
        if path.absolute().parent.is_dir():
            return
    except OSError as error:
        raise ResultError(f"the report {path} cannot be written: {error.strerror}") from None
    raise ResultError(f"the report {path} cannot be written: there is no directory {path.absolute().parent}")


def check_empty(path: Path | None, content: str) -> None:
    """Raises ResultError when `content` (plural) cannot get a directory of its own there."""
    if path is None:
        return
    try:
        used = path.exists() and (not path.is_dir() or any(path.iterdir()))
    except OSError as error:
        raise ResultError(f"{path} cannot be a directory for the {content}: {error.strerror}") from None
    if used:
        raise ResultError(f"{path} is not empty: name a new directory for the {content}")


def write_page(path: Path, text: str) -> None:
    """Raises ResultError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResultError(f"the report {path} cannot be written: {error.strerror}") from None
