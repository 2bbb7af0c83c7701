"""The part of the composition root for permissions: the authority, its questions, and the review after a change."""
from __future__ import annotations

from collections.abc import Callable

from fluxmq.access.acl import Acl
from fluxmq.access.authority import Authority
from fluxmq.access.users import Users
from fluxmq.app.logs import Notes
from fluxmq.app.reviewing import Reviewing
from fluxmq.edge.asking import Asking
from fluxmq.engine.broker import Broker
from fluxmq.model.config import Auth

__all__ = ["Permissions"]


class Permissions:
    """authority: decides permissions; None: the configured files do."""

    def __init__(self, broker: Broker, config: Auth, authority: Authority | None, notes: Notes) -> None:
        self.authority = authority or Authority(
            config.users_file or None, config.acl_file or None, config.allow_anonymous,
            cluster_users=config.cluster_users, cluster_permissions=config.cluster_permissions)
        self._waits = authority is None and (config.cluster_users or config.cluster_permissions)  # for the cluster
        self.asking = Asking(self.authority, notes.say, config.ask_timeout)
        self.reviewing = Reviewing(broker, self.asking)
        self.on_reviewed: Callable[[], None] = lambda: None  # reviews what is not of MQTT
        self._hub = broker.hub
        self._apply()

    def reload(self) -> list[str]:
        """Reads users and access list again, and reviews subscriptions. Returns errors of files that could not be
        read."""
        problems = self.authority.reload()
        self._apply()
        self.start()
        self.on_reviewed()
        return problems

    def learn(self, users: Users | None, acl: Acl | None) -> None:
        """What the cluster says, from now on; None: as it was. Clients of users that are gone are disconnected."""
        first, self._waits = self._waits, False
        self.authority.learn(users, acl)
        self._apply()
        if first or acl is not None or self.authority.removed:
            self.reviewing.begin()
            self.on_reviewed()

    def start(self) -> None:
        """Permissions may have changed since the last run. What the cluster says of them it has not said yet."""
        if not self._waits:
            self.reviewing.begin()

    def _apply(self) -> None:
        self._hub.open_publish = self.authority.open_publish
        self._hub.access_generation = self.authority.generation
