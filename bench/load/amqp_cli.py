"""`fluxmq bench amqp`: the AMQP 0-9-1 load generator as a user's tool."""
from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import click

from fluxmq.bench.load.amqp_options import AmqpOptions
from fluxmq.bench.load.amqp_rows import AMQP_ROWS, AMQP_SMOKE
from fluxmq.bench.load.amqp_runner import run_amqp
from fluxmq.bench.load.brokers import BrokerError, Needs, start_broker
from fluxmq.bench.load.engine import LoadError
from fluxmq.bench.load.options import OptionsError
from fluxmq.bench.load.rabbitmq_cluster import RabbitCluster
from fluxmq.bench.load.table import latency_line
from fluxmq.model.number_option import Number

__all__ = ["amqp", "render_amqp"]

SMOKE = {"duration": 0.3, "warmup": 0.1}


def fail(error: Exception) -> NoReturn:
    """Exit status 2 for contradicting options, 1 for errors from outside."""
    click.echo(f"fluxmq bench: {error}", err=True)
    raise SystemExit(2 if isinstance(error, OptionsError) else 1)


def render_amqp(figures: dict[str, Any]) -> str:
    """Formats the figures of one run."""
    total = figures["total"]
    lines = [f"broker     {figures['server']}",
             f"sent       {figures['sent_per_second']:,.0f}/s over {figures['seconds']:.2f} s",
             f"confirmed  {figures['acked_per_second']:,.0f}/s"]
    if total["expected"]:
        lines.append(f"delivered  {figures['delivered_per_second']:,.0f}/s")
    lines += latency_line("latency", figures["latency_us"]) + latency_line("confirm", figures["ack_latency_us"])
    lines.append(f"whole run  {total['sent']:,} sent, {total['acked']:,} confirmed, {total['delivered']:,} of "
                 f"{total['expected']:,} delivered, {total['lost']:,} lost, {total['duplicates']:,} duplicates, "
                 f"{total['reordered']:,} out of order")
    for key, what in (("foreign", "deliveries or confirms of nothing that was sent here"),
                      ("redelivered", "delivered again"), ("refused", "refused (basic.nack)"),
                      ("returned", "returned: they could not be routed"), ("stalls", "pauses without any progress"),
                      ("pauses", "times the broker asked not to publish"),
                      ("overruns", "not sent: the broker's backlog was full")):
        if total[key]:
            lines.append(f"           {total[key]:,} {what}")
    if total["expected"] and not figures["checked"]:
        lines.append("           payloads below 16 bytes carry no numbers: order and latency are not known")
    if figures.get("broker_cpu_us_per_message") is not None:
        lines.append(f"broker     {figures['broker_cpu_us_per_message']:.3f} µs CPU per message, "
                     f"{100 * figures['broker_cpu_share']:.0f} % of a processor, "
                     f"{figures['broker_memory']['rss'] / 2**20:.1f} MiB resident, "
                     f"{figures['broker_memory']['peak'] / 2**20:.1f} MiB max")
    lines.append(f"generator  {100 * figures['generator_cpu_share']:.0f} % of a processor")
    return "\n".join(lines)


def run_started(given: dict[str, Any], folder: Path | None, nodes: int) -> dict[str, Any]:
    """Runs against a RabbitMQ that is started for the run and stopped after it. Of several nodes the first has the
    queues, publishers connect to the second, consumers to the third."""
    with tempfile.TemporaryDirectory(prefix="fluxmq-amqp-", dir=folder) as name:
        if nodes == 1:
            with start_broker("rabbitmq", Needs(folder=Path(name))) as broker:
                return run_amqp(AmqpOptions(**given | {"addr": broker.addresses["amqp"], "broker_pid": broker.pid}))
        with RabbitCluster(Path(name), nodes) as cluster:
            addresses = [cluster.address(number % nodes) for number in range(3)]
            return run_amqp(AmqpOptions(**given | {"queue_addr": addresses[0], "addr": addresses[1],
                                                   "sub_addrs": (addresses[2],)}))


@click.command()
@click.option("--addr", help="HOST:PORT of the broker.  [default: 127.0.0.1:5672]")
@click.option("--start", is_flag=True, help="Start the installed RabbitMQ for this run, and stop it again.")
@click.option("--nodes", type=click.IntRange(1, 9), default=1, show_default=True,
              help="With --start: this many nodes as a cluster. The queue is on the first, publishers connect to the "
              "second, consumers to the third.")
@click.option("--queue-addr", help="HOST:PORT of the node on which queues are declared. Default: --addr.")
@click.option("--sub-addr", "sub_addrs", multiple=True, help="HOST:PORT that consumers connect to; may be repeated: "
              "they take turns. Default: --addr.")
@click.option("--dir", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="With --start: where it keeps its data. Default: the temporary directory.")
@click.option("--row", type=click.Choice(sorted(AMQP_ROWS)),
              help="Take the settings of a row of the side-by-side table; other options change them.")
@click.option("--transport", type=click.Choice(["tcp", "tls"]))
@click.option("--cafile", help="PEM file with the authority that signed the broker's certificate.")
@click.option("--insecure", is_flag=True, default=None, help="Do not verify the broker's certificate.")
@click.option("--username", help="[default: guest]")
@click.option("--password", help="[default: guest]")
@click.option("--vhost", help="[default: /]")
@click.option("--queue", type=click.Choice(["classic", "quorum", "stream"]), help="Type of the queues. "
              "[default: classic]")
@click.option("--queues", type=click.Choice(["one", "pairs", "fanout"]),
              help="one queue for all; pairs: publisher i to consumer i; fanout: an exchange, and a queue for each "
              "consumer.  [default: one]")
@click.option("--durable/--transient", default=None, help="Queues and messages that outlive the broker, or not. "
              "[default: durable]")
@click.option("--confirms/--no-confirms", default=None, help="Whether publications are confirmed.  [default: confirms]")
@click.option("--pubs", type=click.IntRange(1), help="Publishers.  [default: 1]")
@click.option("--subs", type=click.IntRange(0), help="Consumers.  [default: 1]")
@click.option("--size", type=click.IntRange(1), help="Payload in bytes.  [default: 256]")
@click.option("--window", type=click.IntRange(1),
              help="Closed loop: messages without a confirm in all.  [default: 1000]")
@click.option("--lag", type=click.IntRange(0), help="Closed loop: messages that consumers may be behind in all; 0 for "
              "any number.  [default: as --window]")
@click.option("--batch", type=click.IntRange(0), help="Closed loop: most messages a publisher sends at a time. "
              "[default: as many as the window allows]")
@click.option("--rate", type=Number(0), help="Open loop: messages per second in all. [default: closed loop]")
@click.option("--prefetch", type=click.IntRange(0, 65535), help="Prefetch count of each consumer; 0 for no limit. "
              "[default: 1000]")
@click.option("--ack-every", type=click.IntRange(0), help="Deliveries per acknowledgement; 0: automatic. [default: 1]")
@click.option("--duration", type=Number(0, min_open=True), help="Seconds measured.  [default: 5]")
@click.option("--warmup", type=Number(0), help="Seconds before that.  [default: 1]")
@click.option("--broker-pid", type=int, help="Process id of the broker, to read its CPU time and memory.")
@click.option("--smoke", is_flag=True, help="A run of a fraction of a second, to see that it works.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as one JSON object.")
def amqp(start: bool, nodes: int, folder: Path | None, row: str | None, smoke: bool, as_json: bool,
         **options: Any) -> None:
    """Publish and consume over AMQP 0-9-1, and report how fast it went.

    Queues are declared for the run and deleted after it. A closed loop (the default) keeps --window messages in flight;
    an open loop (--rate) sends on time whatever the broker does. Exit status 1 when messages were lost.
    """
    given: dict[str, Any] = dict(AMQP_ROWS[row]) if row else {}
    if smoke:
        given |= SMOKE | (AMQP_SMOKE.get(row, {}) if row else {})
    given |= {name: value for name, value in options.items() if value is not None}
    if options["durable"] is not None:
        given["persistent"] = options["durable"]
    try:
        if nodes > 1 and not start:
            raise OptionsError("--nodes is of the RabbitMQ that --start starts")
        figures = run_started(given, folder, nodes) if start else run_amqp(AmqpOptions(**given))
    except (OptionsError, LoadError, BrokerError, OSError) as error:
        fail(error)
    click.echo(json.dumps(figures, indent=2) if as_json else render_amqp(figures))
    if figures["total"]["lost"]:
        raise SystemExit(1)
