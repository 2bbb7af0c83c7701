"""`fluxmq run` whose MQTT clients choose their namespace by their user name: `tenant:user`. Its journal files are
small, so that a test of seconds meets checkpoints.

A test that has a broker inside its process takes `TenantBroker` alone:

    monkeypatch.setattr(server, "Broker", TenantBroker)

REPLACE HERE: when the broker itself reads `vhost:user`, TenantBroker goes, and so does the patch of `server.Broker`
below and in tests/property/test_tenants*.py.
"""
from __future__ import annotations

import os
from typing import Any

from fluxmq._core.memory.namespace import Namespace
from fluxmq._core.pubsub.session import Session
from fluxmq.app import cli, server
from fluxmq.engine import broker, durability

__all__ = ["TenantBroker", "user_of"]

FILE_BYTES = int(os.environ.get("FLUXMQ_TEST_FILE_BYTES", "4096"))


def user_of(tenant: str) -> str:
    """The user name of a client of this tenant."""
    return f"{tenant}:user"


class TenantBroker(broker.Broker):
    """As Broker."""

    def connect(self, name: bytes, *, connection: Any, namespace: Namespace | None = None,
                **rest: Any) -> tuple[Session, bool]:
        tenant, _, user = (connection.login.packet.username or "").rpartition(":")
        if user:
            namespace = self.hub.namespaces[tenant.encode()]
        return super().connect(name, connection=connection, namespace=namespace, **rest)


def _small(*arguments: Any) -> durability.Keeper:
    made, store, file_bytes, driver = arguments
    return _keeper(made, store, min(file_bytes, FILE_BYTES), driver)


_keeper = durability.Keeper

if __name__ == "__main__":
    server.Broker = TenantBroker                # type: ignore[misc]
    server.Keeper = _small                      # type: ignore[misc,assignment]
    server.TICK_S = 0.02                        # type: ignore[misc]
    durability.SLICE_SESSIONS = 2               # gaps within checkpoints, too
    cli.main()
