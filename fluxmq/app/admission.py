"""The part of the composition root that is about who is kept out: what one address may have."""
from __future__ import annotations

from fluxmq.app.descriptors import connections_of_one_address
from fluxmq.edge.origins import Origins
from fluxmq.model.config import Config
from fluxmq.model.origins import Networks

__all__ = ["count_origins"]


def count_origins(config: Config, descriptors: int) -> Origins:
    """Counts connections by address for all listeners. descriptors: the limit of open files."""
    return Origins(Networks(config.server.exempt_networks), connections_of_one_address(config, descriptors))
