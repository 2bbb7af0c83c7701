"""mosquitto_sub and mosquitto_pub: a process for each subscriber, and for each publish."""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections.abc import Sequence

from interop.peers.base import TIMEOUT, Endpoint, Library, Message, Options, Properties, Refused, Session
from kit.tools import require_tool

MARK = "=message="
FORMAT = rf"{MARK}\t%t\t%q\t%r\t%x\t%R\t%D\t%C\t%P"


def _where(where: Endpoint, options: Options) -> list[str]:
    words = ["-h", where.host, "-p", str(where.port), "-V", "mqttv5" if options.version == 5 else "mqttv311"]
    if options.username is not None:
        words += ["-u", options.username, "-P", options.password or ""]
    if where.encrypted:
        words += ["--cafile", where.ca]
    if where.cert:
        words += ["--cert", where.cert, "--key", where.key]
    return words


def _properties(properties: Properties) -> list[str]:
    words: list[str] = []
    for key, value in properties.user:
        words += ["-D", "publish", "user-property", key, value]
    for name, text in (
        ("response-topic", properties.response_topic),
        ("content-type", properties.content_type),
        ("correlation-data", (properties.correlation_data or b"").decode()),
    ):
        if text:
            words += ["-D", "publish", name, text]
    return words


class MosquittoSession(Session):
    """A mosquitto_sub when there is something to subscribe to, a will or a session; its output is read by a thread."""

    def __init__(self, where: Endpoint, options: Options) -> None:
        super().__init__()
        self._where, self._options = where, options
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[str] | None = None
        self._ready, self._said = threading.Event(), [""]
        if options.filters:
            self._subscribe(where, options)

    def _subscribe(self, where: Endpoint, options: Options) -> None:
        # one -q for all filters is what there is
        command = [
            "stdbuf",
            "-oL",
            "mosquitto_sub",
            *_where(where, options),
            "-i",
            options.client_id,
            "-d",
            "-q",
            str(max(qos for _, qos in options.filters)),
            "-F",
            FORMAT,
        ]
        for filter_, _ in options.filters:
            command += ["-t", filter_]
        if not (options.clean if options.version == 5 else options.clean_session):
            command.append("-c")
        if options.version == 5 and options.kept:
            command += ["-x", str(options.expiry_s)]
        if options.will is not None:
            will = options.will
            command += [
                "--will-topic",
                will.topic,
                "--will-payload",
                will.payload.decode(),
                "--will-qos",
                str(will.qos),
            ]
            command += ["--will-retain"] if will.retain else []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        assert self._ready.wait(TIMEOUT), f"mosquitto_sub did not subscribe: {self._said}"
        if self._process.poll() is not None:
            raise Refused(None, "\n".join(self._said))

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        completing = acknowledging = False
        for line in process.stdout:
            if line.startswith(MARK):
                self._inbox.put(self._message(line.rstrip("\n").split("\t")))
                completing = acknowledging = False
                continue
            # What it has acknowledged when a signal comes it shows to nobody.
            if "sending PUBACK" in line:
                self.lost += acknowledging
                acknowledging = True
            # A PUBREL whose PUBCOMP cannot be sent: libmosquitto 2.0 forgets the message and shows it to nobody.
            self.lost += completing and "sending CONNECT" in line
            completing = "sending PUBCOMP" in line
            self._said.append(line)
            if line.startswith("Subscribed"):
                self._ready.set()
        self.lost += acknowledging
        process.wait()
        self._ready.set()

    @staticmethod
    def _message(fields: list[str]) -> Message:
        _, topic, qos, retain, payload, response, correlation, content, user, *_ = fields
        pairs = tuple((pair.partition(":")[0], pair.partition(":")[2]) for pair in user.split(" ") if pair)
        return Message(
            topic,
            bytes.fromhex(payload),
            int(qos),
            retain == "1",
            Properties(pairs, response or None, correlation.encode() or None, content or None),
        )

    def go_on(self, where: Endpoint) -> None:
        """Another process of the same name: nothing is kept but what the broker has."""
        self._where = where
        if self._process is not None:
            self._reader.join(TIMEOUT)
            self._ready.clear()
            self._subscribe(where, self._options)

    def _pub(self, arguments: list[str], data: bytes) -> None:
        name, kept = f"{self._options.client_id}-pub", list[str]()
        if self._options.kept:
            kept = ["-c", *(["-x", str(self._options.expiry_s)] if self._options.version == 5 else [])]
        else:
            name += str(next(self._numbers))
        done = subprocess.run(
            [
                "mosquitto_pub",
                *_where(self._where, self._options),
                "-i",
                name,
                *kept,
                *arguments,
            ],
            input=data,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
        if done.returncode:
            raise Refused(None, done.stderr.decode())

    def publish(self, message: Message) -> None:
        self._pub(
            [
                "-t",
                message.topic,
                "-q",
                str(message.qos),
                "-s" if message.payload else "-n",
                *(["-r"] if message.retain else []),
                *_properties(message.properties),
            ],
            message.payload,
        )

    def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int, *, wait: bool = True) -> None:
        self._pub(["-t", topic, "-q", str(qos), "-l"], b"".join(payload + b"\n" for payload in payloads))

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()  # mosquitto_sub sends DISCONNECT
            self._process.wait(TIMEOUT)

    def drop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT)


class Mosquitto(Library):
    name = "mosquitto"
    transports = ("tcp", "tls")
    returns = exactly_once = hops = True

    def need(self) -> None:
        require_tool("mosquitto_sub", package="mosquitto-clients")
        require_tool("mosquitto_pub", package="mosquitto-clients")
        require_tool("stdbuf", package="coreutils")

    def open(self, where: Endpoint, options: Options) -> Session:
        return MosquittoSession(where, options)


__all__ = ["Mosquitto"]
