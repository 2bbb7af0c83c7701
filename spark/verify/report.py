"""The page of `replay verify`: the verdict, expected beside delivered, and the violations that are shown as text."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from fluxmq.spark.measures.breakdown import KINDS, PARTS_MAX, UNKNOWN, protocols_of
from fluxmq.spark.report.page import Html, Tone, bad, page, section, table
from fluxmq.spark.report.report import Side, beside, conditions, latency
from fluxmq.spark.verify.violations import COUNTS, expected_sums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fluxmq.spark.verify.violations import Judged

__all__ = ["Outcome", "VerifiedPart", "verified_parts", "verify_page"]

SUMS = ("must", "must_delivered", "may", "may_delivered", "violations")


@dataclass(slots=True, frozen=True)
class VerifiedPart:
    """The figures of one topic, QoS (of the publish), receiving client or its protocol."""

    name: str
    must: int = 0
    must_delivered: int = 0
    may: int = 0
    may_delivered: int = 0
    violations: int = 0


@dataclass(slots=True, frozen=True)
class Outcome:
    """The result of verify. verdict: in one sentence. caveats: its restrictions. counted: by COUNTS. kinds: number of
    violations of each kind. shown: some of them, as text. parts: by a key of KINDS, those that are shown and the total
    number."""

    verdict: str
    caveats: list[str]
    counted: dict[str, int]
    kinds: dict[str, int]
    shown: list[str]
    parts: dict[str, tuple[list[VerifiedPart], int]]

    @property
    def tone(self) -> Tone:
        if self.kinds:
            return "bad"
        return "good" if self.counted["must"] or self.counted["group_must"] else "open"


def verified_parts(found: Judged, violations: DataFrame,
                   events: DataFrame) -> dict[str, tuple[list[VerifiedPart], int]]:
    """Expected beside delivered, and violations, for each key of KINDS: those with violations first, then the largest.
    violations: violations.violations(); events: as judged() was given, of one result."""
    told = F.broadcast(protocols_of(events))
    names = F.broadcast(found.names.select("client_number", "client"))
    pairs = found.pairs.join(names, "client_number", "left").join(told, "client_number", "left")
    wrong = violations.join(told, "client_number", "left")
    # A violation of a group belongs to no single client.
    wrong = wrong.withColumn("client", F.coalesce("client", F.concat(F.lit("group "), "group")))
    parts = {}
    for kind, column in {"topic": "p_topic", "protocol": "protocol", "qos": "p_qos", "client": "client"}.items():
        name = F.coalesce(F.col(column).cast("string"), F.lit(UNKNOWN)).alias("name")
        both = (pairs.groupBy(name).agg(*expected_sums())
                .join(wrong.groupBy(name).agg(F.count("*").alias("violations")), "name", "full_outer")
                .fillna(0).select("name", *SUMS).localCheckpoint())
        first = both.orderBy(F.desc("violations"), F.desc(F.col("must") + F.col("may")), "name").limit(PARTS_MAX)
        parts[kind] = [VerifiedPart(**row.asDict()) for row in first.collect()], both.count()
    return parts


def _table(kind: str, shown: list[VerifiedPart], number: int) -> Html:
    def cells(one: VerifiedPart) -> list[str]:
        missing = one.must - one.must_delivered
        return [one.name, f"{one.must:,}", f"{one.must_delivered:,}", bad(f"{missing:,}") if missing else "0",
                f"{one.may:,}", f"{one.may_delivered:,}",
                bad(f"{one.violations:,}") if one.violations else "0"]

    caption = f"By {KINDS[kind]}" + (f": {len(shown)} of {number:,}, those with violations first"
                                     if number > len(shown) else "")
    header = (KINDS[kind], "expected", "received", "missing", "allowed", "received", "violations")
    return table(caption, header, map(cells, shown)) if shown else Html()


def verify_page(side: Side, outcome: Outcome) -> str:
    """The whole page."""
    numbers: list[tuple[Any, ...]] = [(text, f"{outcome.counted[name]:,}") for name, text in COUNTS.items()]
    kinds = [(kind, bad(f"{count:,}")) for kind, count in outcome.kinds.items()]
    shown = [text.partition("\n")[::2] for text in outcome.shown]
    more = sum(outcome.kinds.values()) - len(shown)
    caption = "What was found" + (f", and {more:,} more" if more else "")
    return page(
        f"verify {side.name}", outcome.tone, ". ".join([outcome.verdict, *outcome.caveats]),
        section("Expected and delivered", beside(side), table("Deliveries", ("", ""), numbers)),
        section("Violations", table("By kind", ("kind", ""), kinds) if kinds else Html(),
                table(caption, ("violation", "publish"), shown, "text") if shown else Html()),
        section("By topic, protocol, QoS and client", *[_table(kind, *part) for kind, part in outcome.parts.items()]),
        latency([("", [side.measures])]), conditions([side], ("this result",)))
