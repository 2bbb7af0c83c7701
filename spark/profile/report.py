"""The page of `replay profile`: the contents of a recording. All numbers come from summary.py."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluxmq.spark.report.page import (
    STYLES,
    Html,
    Spread,
    Tone,
    distribution,
    duration,
    instant,
    over_time,
    page,
    section,
    table,
)
from fluxmq.spark.report.plot import Series
from fluxmq.spark.report.text import count_text, seconds_text, size_text

__all__ = ["profile_page"]

Found = Mapping[str, Any]
Counts = Mapping[str, Mapping[int, int]]
# Key of quantiles() → heading.
SPREAD = {"mean": "mean", "min": "min", "p50": "p50", "p90": "p90", "p99": "p99", "p99.9": "p99.9", "max": "max"}
SENT = ("PUBLISH in", "basic.publish in")
CAME = ("PUBLISH out", "basic.deliver out", "basic.get-ok out")


def verdict(found: Found, about: Found) -> tuple[Tone, str]:
    """Whether the recording is complete, and its size."""
    if not found["rows"]:
        return "open", "It has no rows"
    much = f"{count_text(found['rows'])} rows in {seconds_text((found['last'] - found['first']) / 1e9)}"
    lost = max(found["lost_entries"], about["lost_entries"])
    if lost:
        size = size_text(max(found["lost_bytes"], about["lost_bytes"]))
        return "bad", f"{much}; lost while recording: {count_text(lost)} entries, {size}"
    if about["end"] != "stopped":
        return "open", f"{much}; it ended by: {about['end'] or 'nothing that was written down'}"
    return "good", f"{much}; nothing was lost while recording"


def _rates(found: Found) -> Html:
    over = found["over_time"]
    series = [Series(name, style, [(number * over["step_s"], value / over["step_s"])
                                   for number, value in enumerate(over[name]["course"])])
              for name, style in zip(("published", "delivered"), STYLES, strict=True)]
    rows = [[name, *[shown(over[name][key]) if over[name].get(key) is not None else "-" for key in SPREAD]]
            for name, shown in (("published", count_text), ("delivered", count_text), ("bytes", size_text))]
    storms = [(instant(one["second"] * 10**9), count_text(one["opened"])) for one in over["storms"]["worst"]]
    return section("Rates", over_time("rates", "Messages over time", "messages/s", series),
                   table("Per second", ("", *SPREAD.values()), rows),
                   table("Connection storms, the largest", ("second", "opened"), storms) if storms else Html())


def _summed(kinds: Sequence[Found], name: Callable[[Found], str]) -> list[list[str]]:
    """Rows, bytes, publishes sent and deliveries, of all kinds with the same name."""
    sums: dict[str, list[int]] = {}
    for one in kinds:
        kind = f"{one['kind']} {one['direction']}"
        added = (one["rows"], one["bytes"], one["rows"] * (kind in SENT), one["rows"] * (kind in CAME))
        sums[name(one)] = [a + b for a, b in zip(sums.get(name(one), [0] * 4), added, strict=True)]
    return [[named, count_text(rows), size_text(size), count_text(sent), count_text(came)]
            for named, (rows, size, sent, came) in sorted(sums.items(), key=lambda entry: (-entry[1][0], entry[0]))]


def _protocol(one: Found) -> str:
    return " ".join(str(part) for part in (one["protocol"], one["version"]) if part is not None) or "not known"


def _packets(found: Found) -> Html:
    header = ("rows", "bytes", "published", "delivered")
    messages = [one for one in found["kinds"] if one["qos"] is not None]
    kinds = [(" ".join(part for part in (one["kind"], one["direction"]) if part), _protocol(one),
              "-" if one["qos"] is None else str(one["qos"]), count_text(one["rows"]), size_text(one["bytes"]))
             for one in found["kinds"]]
    by_qos = _summed(messages, lambda one: str(one["qos"]))
    return section("By protocol and QoS",
                   table("By protocol", ("protocol", *header), _summed(found["kinds"], _protocol)),
                   table("By QoS", ("QoS", *header), by_qos) if messages else Html(),
                   table("By kind", ("kind", "protocol", "QoS", "rows", "bytes"), kinds))


def _topics(found: Found) -> Html:
    def cells(one: Found) -> list[str]:
        return [count_text(one["published"]), count_text(one["delivered"]),
                size_text(one["published_bytes"] + one["delivered_bytes"])]

    header = ("published", "delivered", "bytes")
    tables = [table(f"The {title} of {count_text(found['topics'])}", ("topic", *header),
                    [[one["topic"], *cells(one)] for one in found[key]])
              for title, key in (("hottest", "hottest"), ("largest", "largest")) if found[key]]
    tables += [table(f"The hottest subtrees of level {level}", ("subtree", "topics", *header),
                     [[one["subtree"], count_text(one["topics"]), *cells(one)] for one in trees])
               for level, trees in found["subtrees"].items() if trees]
    return section("By topic", *tables)


def _clients(found: Found) -> Html:
    busiest = [(one["client"], one["protocol"] or "-", one["role"], count_text(one["connections"]),
                count_text(one["published"]), count_text(one["delivered"]), f"{one['rate']:.3g}")
               for one in found["busiest"]]
    header = ("client", "protocol", "what it does", "connections", "published", "delivered", "per second")
    tables = [table(f"The busiest of {count_text(found['clients'])}", header, busiest)]
    for title, key in (("What they do", "role"), ("Messages per second", "rate_class"), ("Mean payload", "size_class")):
        tables.append(table(title, ("", "clients", "published", "delivered"), [
            (one["class"], *(count_text(one[name]) for name in ("clients", "published", "delivered")))
            for one in found[key]]))
    return section("By client", *tables)


def _distributions(payloads: Counts, latencies: Counts) -> list[Html]:
    drawn = [distribution(f"ack-{number}", f"Latency, {name}", [Spread("", STYLES[0], counts)], duration)
             for number, (name, counts) in enumerate(latencies.items())]
    sizes = [Spread(name, style, payloads.get(name, {})) for name, style in zip(("in", "out"), STYLES, strict=True)]
    return [section("From a packet to its acknowledgement", *drawn),
            section("Payloads", distribution("size", "Size", sizes, size_text))]


def profile_page(found: Found, about: Found, payloads: Counts, latencies: Counts) -> str:
    """The whole page. found: summary(); about: command.about(); payloads, latencies: spreads()."""
    told = [("Recording", str(about["path"])), ("Broker", about["broker"]), ("Source", str(about["source"])),
            ("Parts", count_text(about["parts"])), ("Files", size_text(about["file_bytes"])),
            ("Ended by", about["end"] or "-")]
    parts: list[Html] = []
    if found["rows"]:
        told += [("First", instant(found["first"])), ("Last", instant(found["last"])),
                 ("Packets", size_text(found["bytes"]))]
        parts = [_rates(found), *_distributions(payloads, latencies), _packets(found), _topics(found), _clients(found)]
    return page(f"recording {about['path']}", *verdict(found, about), *parts,
                section("The recording", table("What it is of", ("", ""), told, "text")))
