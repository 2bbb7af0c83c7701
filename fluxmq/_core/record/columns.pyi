from typing import final

@final
class Words: ...

@final
class Columns: ...
