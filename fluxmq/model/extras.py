"""How the optional parts are installed, said in one place.

The distribution is called `fluxmq-broker`, since `fluxmq` is somebody else's on the package index. It is
installed from a checkout."""

__all__ = ["how_to_install"]


def how_to_install(extra: str) -> str:
    """The command for one of the extras of pyproject.toml, to follow a colon or `with`."""
    return f"pip install '.[{extra}]' in the checkout of FluxMQ"
