"""`fluxmq bench cluster`: a cluster of three nodes measured, as a user's tool."""
from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import click

from fluxmq._core.errors import ConfigError
from fluxmq.bench.load.cluster import ClusterOptions, render_cluster, run_cluster
from fluxmq.bench.load.cluster_parts import TTL_MIN
from fluxmq.bench.load.cluster_rows import CLUSTER_ROWS
from fluxmq.bench.load.options import OptionsError
from fluxmq.model.number_option import Number

__all__ = ["cluster"]

SMOKE_SECONDS = 0.3
SMOKE_WARMUP = 0.1
SMOKE_SCALE = 0.02
FAILED = 1
MISUSED = 2


@click.command()
@click.option("--only", multiple=True, metavar="ROW", help="Run this row only; may be repeated. --list names them.")
@click.option("--list", "list_rows", is_flag=True, help="Name the rows and stop.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Times that each row is run.")
@click.option("--duration", type=Number(0, min_open=True), default=5.0, show_default=True,
              help="Seconds measured of a load.")
@click.option("--warmup", type=Number(0), default=1.0, show_default=True, help="Seconds before that.")
@click.option("--ttl", type=Number(3, 120), default=10.0, show_default=True,
              help="Time to live of the nodes' leases, seconds; the rows of killed nodes have 3.")
@click.option("--dir", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Where nodes keep their data. Default: the temporary directory.")
@click.option("--smoke", is_flag=True, help="One round of a fraction of a second per row, at small sizes.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as one JSON object.")
def cluster(list_rows: bool, folder: Path | None, smoke: bool, as_json: bool, **given: Any) -> None:
    """Three nodes of FluxMQ with their etcd members: throughput and latency across them, connects, and failures.

    Needs the packages of the extra `cluster`, and an etcd. Exit status 1 if a row could not be run.
    """
    if list_rows:
        for row in CLUSTER_ROWS:
            click.echo(f"{row.key:<16} {row.work}")
        return
    if smoke:
        given |= {"rounds": 1, "duration": SMOKE_SECONDS, "warmup": SMOKE_WARMUP, "scale": SMOKE_SCALE, "ttl": TTL_MIN}
    try:
        with tempfile.TemporaryDirectory(prefix="fluxmq-cluster-", dir=folder) as own:
            results = run_cluster(ClusterOptions(folder=Path(own), **given), lambda line: click.echo(line, err=True))
    except ConfigError as error:
        click.echo(f"fluxmq bench: nothing was run: {error}", err=True)
        if smoke and os.environ.get("FLUXMQ_REQUIRE_TOOLS") != "1":
            return
        raise SystemExit(FAILED) from None
    except (OptionsError, OSError) as error:
        click.echo(f"fluxmq bench: {error}", err=True)
        raise SystemExit(MISUSED if isinstance(error, OptionsError) else FAILED) from None
    click.echo(json.dumps(results, indent=2) if as_json else render_cluster(results))
    # At smoke size a broker to compare with may be missing, as it may in `fluxmq bench compare`.
    excused = smoke and os.environ.get("FLUXMQ_REQUIRE_TOOLS") != "1"
    if any(row["error"] and not (excused and "is not installed" in row["error"]) for row in results["rows"]):
        raise SystemExit(FAILED)
