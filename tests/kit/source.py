"""A broker with queues, and the data source of Spark over it in this process: what tasks would read, without Spark."""
from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

from fluxmq.app.admin_client import AdminClient
from kit.broker import Broker

STEP = 500


class QueueBroker:
    """broker: a Broker or CrashBroker that runs, with storage below its directory."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    @property
    def data(self) -> Path:
        return self.broker.directory / "data"

    @property
    def socket(self) -> str:
        """The admin socket's path, relative: the one of a test's directory may be too long for a socket."""
        return os.path.relpath(self.data / "admin.sock")

    @property
    def address(self) -> str:
        host, port = self.broker.address
        return f"{host}:{port}"

    @property
    def admin(self) -> AdminClient:
        return AdminClient(Path(self.socket))

    def put(self, queue: str, count: int, first: int = 0, **more: Any) -> None:
        """Publishes messages whose payloads are numbers; more: of the admin API's messages, called with the number
        where it is a function."""
        admin = self.admin
        for at in range(first, first + count, STEP):
            messages = [{"payload": str(number)} | {name: value(number) if callable(value) else value
                                                    for name, value in more.items()}
                        for number in range(at, min(at + STEP, first + count))]
            admin.ask("POST", "queues", queue, "messages", body={"messages": messages})
        admin.close()

    def browse(self, queue: str) -> list[dict[str, Any]]:
        """Everything in it, as the JSON of the admin API shows it: the oracle."""
        admin, found, position = self.admin, [], "first"
        while True:
            page = admin.ask("GET", "queues", queue, "messages", query={"from": position, "count": 1000})
            if not page["messages"]:
                admin.close()
                return found
            found += page["messages"]
            position = page["next"]

    def shown(self, queue: str) -> list[tuple[Any, ...]]:
        """What `browse` says, as `row` makes it of what the source reads."""
        return sorted((message["partition"], message["offset"], message["topic"],
                       base64.b64decode(message["payload"]) if message["encoding"] == "base64" else
                       message["payload"].encode(), message["time_ms"], message["expires_at"], message["priority"],
                       message["properties"].get("content-type"),
                       json.dumps({name: str(value) for name, value in message["properties"].items()
                                   if name != "content-type"}, sort_keys=True),
                       json.dumps(dict(reversed(message["user_properties"])), sort_keys=True))
                      for message in self.browse(queue))


def row(found: dict[str, Any]) -> tuple[Any, ...]:
    """A row of the source, as `QueueBroker.shown` has it."""
    return (found["partition"], found["offset"], found["topic"], bytes(found["payload"]), _ms(found["time"]),
            _ms(found["expiry"]), found["priority"], found["content_type"],
            json.dumps(dict(found["properties"]), sort_keys=True), json.dumps(dict(found["headers"]), sort_keys=True))


def _ms(time: Any) -> int:
    return 0 if time is None else round(time.timestamp() * 1000)


def forget_last_commit(checkpoint: Path) -> None:
    """As if the query had been killed behind the work of its last batch, and before it said so."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()),
               key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
