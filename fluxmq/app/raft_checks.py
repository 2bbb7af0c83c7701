"""Checks of `cluster.raft` and of `replication` of queues against each other, and what a start should warn of.

What is decided by them is in model/replication.py, which has the texts too.
"""
from collections.abc import Iterator

from fluxmq.app.config_files import Finding
from fluxmq.model.config import Config
from fluxmq.model.entries import SpecError
from fluxmq.model.raft import WITHOUT_EFFECT, ClusterRaft, RaftGroup
from fluxmq.model.replication import ReplicationSettings, replication_of

__all__ = ["check_raft", "raft_warnings"]


def check_raft(config: Config) -> Iterator[Finding]:
    """All findings. The key that is reported is the one of `cluster.raft` or `queues` that has the setting."""
    settings = ReplicationSettings(config.cluster.raft, config.cluster.enabled)
    for path, text in settings.problems():
        yield (path, _key_of(path)), text
    for at, spec in enumerate(config.queues):
        try:
            replication_of(settings, spec)
        except SpecError as error:
            yield (f"queues[{at}].{error.path}", "queues", "cluster.enabled", "cluster.raft.enabled"), error.text


def _key_of(path: str) -> str:
    """The key of the schema that has it."""
    for key in ("cluster.raft.groups", "cluster.raft.queues"):
        if path.startswith((f"{key}.", f"{key}[")):
            return key
    return path


def raft_warnings(config: Config) -> list[str]:
    """A line for each thing that is taken and does nothing, or is likely not meant, for the log at start."""
    raft, node = config.cluster.raft, config.cluster.node_id
    if raft.enabled and not config.cluster.enabled:
        return ["cluster.raft.enabled: nothing is replicated without a cluster: set cluster.enabled"]
    if not raft.enabled:
        return []
    sections: list[tuple[str, ClusterRaft | RaftGroup, ClusterRaft | RaftGroup]] = [
        ("cluster.raft", raft, ClusterRaft()),
        *((f"cluster.raft.groups.{name}", group, RaftGroup()) for name, group in raft.groups.items())]
    lines = [f"{path}.{key}: has no effect: {why}" for path, said, plain in sections
             for key, why in WITHOUT_EFFECT.items() if getattr(said, key) not in (getattr(plain, key), 0)]
    lines += [f"{path}.peers: this node, {node}, is not named, and has no replica: name all nodes that may have one, "
              "this one too" for path, said, _ in sections if said.peers and node not in said.peers]
    return lines
