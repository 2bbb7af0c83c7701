from typing import final

__all__ = ["Sizes"]

@final
class Sizes: ...
