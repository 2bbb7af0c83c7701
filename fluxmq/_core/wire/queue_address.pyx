# cython: language_level=3, auto_pickle=False, embedsignature=True
"""The address of a queue as a topic, for Python code. See wire/queue_address.pxd."""

__all__ = ["QUEUE_PREFIX", "queue_topic", "split_queue_address"]

QUEUE_PREFIX = <bytes>PREFIX


def queue_topic(str name not None, str key="") -> str:
    """The topic of a queue, or of a routing key in it."""
    return QUEUE_PREFIX.decode() + name + ("/" + key if key else "")


def split_queue_address(bytes topic not None) -> tuple[bytes, bytes] | None:
    """(queue name, levels below it) of a topic or filter; None: it is not a queue address."""
    if not topic.startswith(QUEUE_PREFIX):
        return None
    name, _, rest = topic[QUEUE_PREFIX_BYTES:].partition(b"/")
    return name, rest
