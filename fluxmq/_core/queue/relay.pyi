from typing_extensions import disjoint_base

__all__ = ["Relay"]

@disjoint_base
class Relay: ...
