"""How much one processor of the replay plays: against a broker on another, in turns with the load generator.

    python -m fluxmq.bench.micro.bench_replay [--spark] [--smoke] [--messages N] [--rounds N] [--dir DIR] [--json]

Four publishers, four subscribers, each message to one of them, 64 bytes. All threads of the replay (operations, event
loop, rows, Parquet) share one processor. `messages/s`: publishes from the first that was sent to the last that was
acknowledged or delivered. `generator`: messages/s that the load generator gets out of the same broker, QoS, size and
number of clients in the turn beside it; the ratio is the share of it that the replay reaches. `--spark`: the player is
the one slot of a Spark on that same processor, which reads the recording and writes the result as any job does.
"""
from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.compute as pc

from fluxmq.bench.load.brokers import Needs, start_broker
from fluxmq.bench.load.options import LoadOptions
from fluxmq.bench.load.runner import run_load
from fluxmq.record.files import RecordingFiles, batch_of_rows, prepare_directory
from fluxmq.record.manifest import new_manifest
from fluxmq.record.options import BrokerAbout, RecordOptions
from fluxmq.spark.replay.replaying import ReplayRequest, replay_here
from fluxmq.spark.result import Summary, open_result

__all__ = ["main", "measure", "write_recording"]

PAIRS = 4
SIZE = 64
CHUNK = 20_000
START = 1_700_000_000_000_000_000


def write_recording(path: Path, messages: int, qos: int) -> None:
    """Clients that connect and subscribe, then `messages` publishes, a microsecond apart."""
    options = RecordOptions(max_rows=1 << 40, max_bytes=1 << 40, max_seconds=3600.0)
    prepare_directory(path)
    files = RecordingFiles(path, new_manifest(options, BrokerAbout()), options)
    rows: list[dict[str, Any]] = []
    seq = 0

    def row(pair: int, role: str, kind: str, **more: Any) -> None:
        nonlocal seq
        rows.append({"seq": seq, "time": START + seq * 1000, "connection": pair * 2 + 1 + (role == "pub"),
                     "client_id": f"{role}-{pair}", "protocol": "mqtt", "version": 5, "direction": "in",
                     "kind": kind, **more})
        seq += 1

    for pair in range(PAIRS):
        row(pair, "sub", "CONNECT", detail='{"clean_start": true, "keep_alive_s": 60}')
        row(pair, "sub", "SUBSCRIBE", detail=json.dumps({"subscriptions": [[f"bench/{pair}", qos]]}))
        row(pair, "pub", "CONNECT", detail='{"clean_start": true, "keep_alive_s": 60}')
    for number in range(messages):
        row(number % PAIRS, "pub", "PUBLISH", topic=f"bench/{number % PAIRS}", qos=qos, retain=False, dup=False,
            size=SIZE)
        if len(rows) >= CHUNK:
            files.write(batch_of_rows(rows))
            rows.clear()
    if rows:
        files.write(batch_of_rows(rows))
    files.close("stopped")


def _replayed(play: Callable[[ReplayRequest], Summary], recording: Path, address: str, out: Path) -> float:
    """Publishes per second."""
    summary = play(ReplayRequest(recording=str(recording), broker=address, out=str(out), speed=None, quiet_s=0.3))
    if not summary.complete:
        raise RuntimeError(f"the replay was not complete: {summary.why}")
    if summary.counts["publish"] != summary.counts["delivery"]:
        raise RuntimeError(f"{summary.counts['publish']} were published and {summary.counts['delivery']} delivered")
    table = open_result(out).table(["event", "sent", "acked"])
    begun = pc.min(table.filter(pc.equal(table["event"].cast("string"), "publish"))["sent"]).as_py()
    arrived = pc.max(table.filter(pc.equal(table["event"].cast("string"), "delivery"))["sent"]).as_py()
    acked = pc.max(table.filter(pc.equal(table["event"].cast("string"), "publish"))["acked"]).as_py()
    return float(summary.counts["publish"] / (max(arrived, acked) - begun) * 1e9)


def _generated(address: str, qos: int, seconds: float) -> float:
    found = run_load(LoadOptions(addr=address, version="5", pubs=PAIRS, subs=PAIRS, topics="pairs", qos=qos, size=SIZE,
                                 window=1000, duration=seconds, warmup=0.2))
    return float(found["delivered_per_second"])


def _in_spark() -> Callable[[ReplayRequest], Summary]:
    """Its processes run where this one does."""
    from fluxmq.spark.replay.command import replay_with_spark
    from fluxmq.spark.session import session

    return partial(replay_with_spark, session("bench", "local[1]", {"spark.ui.showConsoleProgress": "false"}))


def measure(folder: Path, *, messages: int, rounds: int, seconds: float, spark: bool = False) -> dict[str, Any]:
    """{"qos 0": {"replay": [...], "generator": [...], …}, …}: messages per second, a value for each round."""
    cores = sorted(os.sched_getaffinity(0))
    there, here = frozenset(cores[:1]), cores[-1:]
    found: dict[str, Any] = {}
    with start_broker("fluxmq", Needs(folder=folder, cores=there)) as broker:
        os.sched_setaffinity(0, here)
        address = broker.addresses["tcp"]
        play = _in_spark() if spark else replay_here
        for qos in (0, 1, 2):
            recording = folder / f"recording-{qos}"
            write_recording(recording, messages, qos)
            values: dict[str, list[float]] = {"replay": [], "generator": []}
            turns: list[tuple[str, Callable[[], float]]] = []
            for number in range(rounds):
                out = folder / f"result-{qos}-{number}"
                turns += [("replay", partial(_replayed, play, recording, address, out)),
                          ("generator", partial(_generated, address, qos, seconds))]
            for name, turn in turns:
                values[name].append(turn())
            found[f"qos {qos}"] = values | {"ratio": median(values["replay"]) / median(values["generator"])}
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small, to see that it runs")
    parser.add_argument("--spark", action="store_true", help="the player is a task of Spark's")
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="where recordings and results go")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
        found = measure(Path(folder), messages=2000 if asked.smoke else asked.messages,
                        rounds=1 if asked.smoke else asked.rounds, seconds=0.3 if asked.smoke else 2.0,
                        spark=asked.spark)
    if asked.json:
        print(json.dumps(found))
        return
    for name, values in found.items():
        replayed = values["replay"]
        print(f"{name}: replay {median(replayed):,.0f} messages/s ({min(replayed):,.0f}..{max(replayed):,.0f}), "
              f"generator {median(values['generator']):,.0f}, ratio {values['ratio']:.3f}")
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
