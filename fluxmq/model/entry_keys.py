"""The keys of one entry of `queues` and of `namespaces`, read from their structs as config_keys.py reads those of the
configuration. A start needs none of them.
"""
from fluxmq.model.config_keys import keys_of
from fluxmq.model.namespaces import NamespaceSpec
from fluxmq.model.queues import QueueSpec

__all__ = ["NAMESPACE_KEYS", "NAMESPACE_SECTIONS", "QUEUE_KEYS", "QUEUE_SECTIONS"]

# As queues[].limits.max_depth. `name` has no default; "" stands for that.
QUEUE_KEYS, QUEUE_SECTIONS = keys_of(QueueSpec(name=""), "queues[].")
# As namespaces[].limits.queues.
NAMESPACE_KEYS, NAMESPACE_SECTIONS = keys_of(NamespaceSpec(name=""), "namespaces[].")
