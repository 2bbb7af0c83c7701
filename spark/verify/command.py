"""`fluxmq replay verify RESULT`: did the broker deliver what it must, and nothing else? docs/verify.md."""
from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fluxmq.model.number_option import Number
from fluxmq.spark.attempt import attempt
from fluxmq.spark.measures.measuring import measured
from fluxmq.spark.progress import shown
from fluxmq.spark.report.page import check_empty, check_place, html_option, write_page
from fluxmq.spark.report.report import Side
from fluxmq.spark.report.side_by_side import side_by_side
from fluxmq.spark.report.text import printable
from fluxmq.spark.result import Result, ResultError, open_result
from fluxmq.spark.session import session
from fluxmq.spark.verify.sessions import NEVER, of_mqtt

if TYPE_CHECKING:
    from pyspark.sql import Row

__all__ = ["verify"]

SHOWN_MAX = 20
PROVED, VIOLATED, UNPROVED = 0, 1, 2


def _instant(ns: int | None) -> str:
    if ns is None or ns >= NEVER:
        return "never"
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%H:%M:%S") + f".{ns % 1_000_000_000:09}"


def _shown(row: Row) -> list[str]:
    """One violation as text: the client, the reason, and the publish."""
    who = f"client {row.client}" if row.client is not None else f"group {row.group}"
    if row.client is not None and row.group is not None:
        who += f" of {row.group}"
    at = f", arrived {_instant(row.arrived)}" if row.arrived is not None else ""
    lines = [f"{row.kind}: {who}: {row.why}{at}"]
    if row.p_client is None:
        lines.append(f"    topic {row.p_topic}; its trace names operation {row.publisher_op} of client number "
                     f"{row.publisher}")
    else:
        lines.append(f"    publish: client {row.p_client}, operation {row.publisher_op}, topic {row.p_topic}, "
                     f"QoS {row.p_qos}, sent {_instant(row.p_sent)}, acknowledged {_instant(row.p_acked)}")
    return lines


def _proves(counted: dict[str, int]) -> bool:
    """Whether a delivery was required."""
    return bool(counted["must"] or counted["group_must"])


def _verdict(counted: dict[str, int], kinds: dict[str, int]) -> str:
    """The verdict in one sentence."""
    if not kinds:
        return "no violation" if _proves(counted) else "nothing was proved: no delivery was expected"
    return (f"violations: {sum(kinds.values()):,} ("
            + ", ".join(f"{name} {count:,}" for name, count in kinds.items()) + ")")


def _several(found: Result) -> bool:
    """Whether it is of a replay against the nodes of a cluster."""
    return "," in str(found.summary.broker.get("address", ""))


def _caveats(found: Result, settle: float) -> list[str]:
    """Restrictions of the verdict."""
    lines = []
    if "amqp_address" in found.summary.broker:
        lines.append("AMQP 0-9-1 clients and their messages are left out: only MQTT is judged")
    if _several(found):
        lines.append("several nodes: whether a retained message that was replaced still comes is not judged")
    if not found.summary.complete:
        lines.append(f"partial: {found.summary.why or 'the replay did not end'}; what is there was judged")
    quiet = found.summary.options.get("quiet_s", settle)
    if quiet < settle:
        lines.append(f"the replay waited {quiet:g} s for its last deliveries, so what was published in its last "
                     f"{settle:g} s may be; --settle {quiet:g} demands it")
    return lines


def _report(found: Result, settle: float, counted: dict[str, int], kinds: dict[str, int], some: list[Row]) -> str:
    from fluxmq.spark.verify.violations import COUNTS

    lines = [f"result {found.name}, run {found.summary.run}", *_caveats(found, settle)]
    lines += side_by_side(found.summary)
    width = max(len(f"{number:,}") for number in counted.values())
    lines += [f"  {counted[name]:>{width},} {text}" for name, text in COUNTS.items()]
    total = sum(kinds.values())
    lines.append(_verdict(counted, kinds))
    for row in some:
        lines += ["  " + printable(line) for line in _shown(row)]
    if total > len(some):
        lines.append(f"  … and {total - len(some):,} more: --out DIR writes them all")
    return "\n".join(lines)


@click.command("verify")
@click.argument("result", type=click.Path(path_type=str))
@click.option("--settle", type=Number(0.0), default=1.0, show_default=True, metavar="SECONDS",
              help="A session that stayed connected this long after the PUBACK must have received the message.")
@click.option("--show", type=click.IntRange(0), default=SHOWN_MAX, show_default=True, help="Violations shown as text.")
@click.option("--out", type=click.Path(path_type=Path), help="Directory for all violations, as Parquet.")
@html_option()
@click.option("--master", metavar="URL", help="As spark-submit's; without it this process, on all processors.")
def verify(result: str, settle: float, show: int, out: Path | None, html: Path | None, master: str | None) -> int:
    """Compare the deliveries of a replay with what its subscriptions and publishes demand.

    \b
    Exit status:
      0  no violation, and at least one expected delivery was received
      1  a violation: a delivery that is missing, that was not allowed, that
         came twice or out of order; or the result cannot be read
      2  nothing was proved: no delivery was expected
    """
    check_place(html)
    found = open_result(result)
    check_empty(out, "violations")
    from pyspark.sql import functions as F

    from fluxmq.spark.verify.report import Outcome, verified_parts, verify_page
    from fluxmq.spark.verify.violations import KINDS, counts, judged, violations

    with shown("starting Spark"):
        spark = session("fluxmq verify", master, rows=sum(found.summary.counts.values()))
    with attempt(spark, "verify", ResultError, f"the events of {found.name} cannot be judged"):
        events = found.frame(spark).withColumn("run", F.lit(found.summary.run))
        if "amqp_address" in found.summary.broker:
            events = of_mqtt(events).localCheckpoint()
        tables = judged(events, settle_ns=int(settle * 1e9), complete=found.summary.complete, several=_several(found))
        rows = violations(tables).localCheckpoint()
        if out is not None:
            rows.repartition(1).write.parquet(str(out))
        by_kind: dict[str, Any] = {row["kind"]: row["count"] for row in rows.groupBy("kind").count().collect()}
        first = rows.orderBy(F.coalesce("arrived", "p_sent"), "client", "publisher_op").limit(show).collect()
        counted = counts(tables, events)
        kinds = {kind: by_kind[kind] for kind in KINDS if kind in by_kind}
        click.echo(_report(found, settle, counted, kinds, first))
        if html is not None:
            (measures,) = measured([found], "auto", master)
            outcome = Outcome(_verdict(counted, kinds), _caveats(found, settle), counted, kinds,
                              ["\n".join(_shown(row)) for row in first], verified_parts(tables, rows, events))
            write_page(html, verify_page(Side(found.name, found.summary, measures), outcome))
            click.echo(f"\nThe report with its plots: {html}")
    return VIOLATED if by_kind else PROVED if _proves(counted) else UNPROVED
