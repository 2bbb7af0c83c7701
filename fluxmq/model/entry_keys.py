"""The keys of one entry of `queues`, `namespaces`, `cluster.raft.groups` and `cluster.raft.queues`, read from their
structs as config_keys.py reads those of the configuration. A start needs none of them.
"""
from fluxmq.model.config_keys import keys_of
from fluxmq.model.namespaces import NamespaceSpec
from fluxmq.model.queues import QueueSpec
from fluxmq.model.raft import RaftGroup, RaftQueues

__all__ = ["GROUP_KEYS", "GROUP_SECTIONS", "NAMESPACE_KEYS", "NAMESPACE_SECTIONS", "PATTERN_KEYS", "PATTERN_SECTIONS",
           "QUEUE_KEYS", "QUEUE_SECTIONS"]

# As queues[].limits.max_depth. `name` has no default; "" stands for that.
QUEUE_KEYS, QUEUE_SECTIONS = keys_of(QueueSpec(name=""), "queues[].")
# As namespaces[].limits.queues.
NAMESPACE_KEYS, NAMESPACE_SECTIONS = keys_of(NamespaceSpec(name=""), "namespaces[].")
# As cluster.raft.groups[].shards, and cluster.raft.queues[].pattern.
GROUP_KEYS, GROUP_SECTIONS = keys_of(RaftGroup(), "cluster.raft.groups[].")
PATTERN_KEYS, PATTERN_SECTIONS = keys_of(RaftQueues(), "cluster.raft.queues[].")
