"""Topics that stand for a namespace where a rule of "/" is asked: `$vhost/<namespace>`."""
from __future__ import annotations

__all__ = ["VIRTUAL_HOSTS", "entered", "virtual_host_topic"]

VIRTUAL_HOSTS = "$vhost/"


def virtual_host_topic(namespace: str) -> str:
    """The name is one level: with its slashes the rules of `a` would hold for the namespace `a/b`."""
    return VIRTUAL_HOSTS + namespace.replace("%", "%25").replace("/", "%2F")


def entered(topic: str) -> str | None:
    """The namespace for which this topic stands; None: for none."""
    name = topic.removeprefix(VIRTUAL_HOSTS)
    return None if name == topic else name.replace("%2F", "/").replace("%25", "%")
