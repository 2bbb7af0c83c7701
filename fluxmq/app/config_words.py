"""The value of a plain YAML word by the core schema of version 1.2 (section 10.3.2): `yes`, `on`, `0755` and dates are
texts. PyYAML, which reads everything else, implements version 1.1 only."""
import re
from collections.abc import Callable

__all__ = ["KINDS", "is_word", "word"]

# Words in which no character has a special meaning for YAML.
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/]*|[-+.][0-9][A-Za-z0-9.]*", re.ASCII)



def _integer(text: str) -> int:
    return int(text, 16 if text.startswith("0x") else 8 if text.startswith("0o") else 10)


# tag (without tag:yaml.org,2002:) → pattern of the whole word, its possible first characters, its conversion
KINDS: dict[str, tuple[re.Pattern[str], list[str], Callable[[str], object]]] = {
    name: (re.compile(rf"^(?:{pattern})$", re.ASCII), first, value) for name, pattern, first, value in (
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""], lambda _: None),
        ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF"), lambda text: text[0] in "tT"),
        # 18 digits: no key takes a longer number, and int() refuses more than 4 300
        ("int", r"[-+]?[0-9]{1,18}|0x[0-9a-fA-F]{1,15}|0o[0-7]{1,20}", list("-+0123456789"), _integer),
        ("float", r"[-+]?(\.[0-9]+|[0-9]{1,18}(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?", list("-+.0123456789"), float),
    )}


def is_word(text: str) -> bool:
    """Whether YAML reads this text as one word."""
    return _WORD.fullmatch(text) is not None


def word(text: str) -> object:
    """The value of a text that is a word."""
    for pattern, _, value in KINDS.values():
        if pattern.match(text):
            return value(text)
    return text
