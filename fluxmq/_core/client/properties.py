"""MQTT 5 properties: a list of (identifier, value), as the codec takes it, with access by name."""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from fluxmq._core.errors import UsageError
from fluxmq._core.mqtt.props import PropertyValue, encode_properties, property_table

__all__ = ["Properties"]

_IDENTIFIERS = {name: identifier for identifier, name, *_ in property_table()}
_NAMES = {identifier: name for name, identifier in _IDENTIFIERS.items()}
_USER_PROPERTY = _IDENTIFIERS["user_property"]
_BARE = 0x7F        # a Property Length up to this takes one byte


class Properties(list[tuple[int, PropertyValue]]):
    """Properties in wire order: a list of (identifier, value). MQTT 5.0 section 2.2.2.

    Properties(content_type="text/plain", user=[("a", "1")]): the names are the specification's in lower case with
    underscores; `user` is a mapping or pairs (name, value), where names may repeat. Reading: `p.content_type` (None:
    not present), `p.user` (pairs), `p.user_dict` (the last value of a name wins). Raises UsageError for an unknown
    name.
    """

    __slots__ = ()

    def __init__(self, entries: Iterable[tuple[int, PropertyValue]] = (), *,
                 user: Mapping[str, str] | Iterable[tuple[str, str]] | None = None,
                 **named: int | str | bytes | None) -> None:
        super().__init__(entries)
        for name, value in named.items():
            if name not in _IDENTIFIERS:
                raise UsageError(f"there is no property {name!r}; MQTT 5 has {', '.join(_IDENTIFIERS)}")
            if value is not None:
                self.append((_IDENTIFIERS[name], value))
        if user is not None:
            pairs = user.items() if isinstance(user, Mapping) else user
            self.extend((_USER_PROPERTY, (name, value)) for name, value in pairs)

    def __getattr__(self, name: str) -> PropertyValue | None:
        identifier = _IDENTIFIERS.get(name)
        if identifier is None:
            raise AttributeError(f"there is no property {name!r}")
        return next((value for found, value in self if found == identifier), None)

    def text(self, name: str) -> str:
        """The value of a text property; "" if it is not present."""
        value = getattr(self, name)
        return value if isinstance(value, str) else ""

    @property
    def user(self) -> list[tuple[str, str]]:
        """The user properties, in order."""
        return [value for identifier, value in self if identifier == _USER_PROPERTY and isinstance(value, tuple)]

    @property
    def user_dict(self) -> dict[str, str]:
        """The user properties by name; the last value of a name wins."""
        return dict(self.user)

    def wire(self, packet_type: int = -1) -> bytes:
        """Encodes them, without their length. packet_type: as in encode_properties. Raises UsageError."""
        encoded = encode_properties(list(self), packet_type)
        start = 1
        while encoded[start - 1] > _BARE:
            start += 1
        return encoded[start:]

    def __repr__(self) -> str:
        shown = [f"{_NAMES.get(identifier, identifier)}={value!r}" for identifier, value in self]
        return f"Properties({', '.join(shown)})"
