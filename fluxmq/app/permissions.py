"""The part of the composition root for permissions: the authority, its questions, and the review after a change."""
from __future__ import annotations

from fluxmq.access.authority import Authority
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
            config.users_file or None, config.acl_file or None, config.allow_anonymous)
        self.asking = Asking(self.authority, notes.say, config.ask_timeout)
        self.reviewing = Reviewing(broker, self.asking)
        self._hub = broker.hub
        self._apply()

    def reload(self) -> list[str]:
        """Reads users and access list again, and reviews subscriptions. Returns errors of files that could not be
        read."""
        problems = self.authority.reload()
        self._apply()
        self.reviewing.begin()
        return problems

    def _apply(self) -> None:
        self._hub.open_publish = self.authority.open_publish
        self._hub.access_generation = self.authority.generation
