from typing import final

@final
class Channel: ...
