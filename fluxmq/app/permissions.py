"""The part of the composition root that is about permissions: who decides, who waits for a decision, and what is judged
again when they change."""
from __future__ import annotations

from fluxmq.access.authority import Authority
from fluxmq.app.logs import Notes
from fluxmq.app.reviewing import Reviewing
from fluxmq.edge.asking import Asking
from fluxmq.engine.broker import Broker
from fluxmq.model.config import Auth

__all__ = ["Permissions"]


class Permissions:
    """authority: who decides; None: the configured files."""

    def __init__(self, broker: Broker, config: Auth, authority: Authority | None, notes: Notes) -> None:
        self.authority = authority or Authority(
            config.users_file or None, config.acl_file or None, config.allow_anonymous)
        self.asking = Asking(self.authority, notes.say, config.ask_timeout)
        self.reviewing = Reviewing(broker, self.asking)
        self._hub = broker.hub
        self._apply()

    def reload(self) -> list[str]:
        """Users and access list are read again, and subscriptions judged again. Returns what did not load."""
        problems = self.authority.reload()
        self._apply()
        self.reviewing.begin()
        return problems

    def _apply(self) -> None:
        self._hub.open_publish = self.authority.open_publish
        self._hub.access_generation = self.authority.generation
