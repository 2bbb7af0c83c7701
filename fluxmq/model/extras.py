"""How to install the optional parts, in one place for all messages.

The distribution is called `fluxmq-broker`, because another project has the name `fluxmq` on the package index. It is
installed from a checkout."""

__all__ = ["how_to_install"]


def how_to_install(extra: str) -> str:
    """The command for one of the extras of pyproject.toml, to follow a colon or `with`."""
    return f"pip install '.[{extra}]' in the checkout of FluxMQ"
