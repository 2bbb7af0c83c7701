"""FluxMQ, a message broker. Importing this package imports nothing compiled."""
__all__ = ["__version__"]
__version__ = "0.1.0"
