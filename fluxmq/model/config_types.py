"""Which values a key may have, from the type of its field: to convert and check values and to write the guide."""
from typing import Annotated, Any, get_args, get_origin

from msgspec import inspect

from fluxmq.model.units import format_duration, format_size

__all__ = ["describe", "description_of"]

_OFF = ", or empty for off"
_EXAMPLES = {"queues": "name: orders", "namespaces": "name: shop", "patterns": "pattern: order*"}
_ADDRESS = f"host:port, [ipv6]:port or :port{_OFF}"


def _bounds(kind: str, info: inspect.FloatType | inspect.IntType) -> str:
    def write(bound: float) -> str:
        if kind == "duration":
            return format_duration(bound)
        return format_size(int(bound)) if kind == "size" else str(bound)

    if info.ge is not None and info.le is not None:
        return f"{',' if kind else ''} from {write(info.ge)} to {write(info.le)}"
    if info.ge:
        return f", at least {write(info.ge)}"
    return f", at most {write(info.le)}" if info.le is not None else ""


def describe(info: inspect.Type, hint: Any) -> tuple[str, str, tuple[str, ...]]:
    """(kind, what is allowed, choices) of one leaf's type."""
    extra: dict[str, Any] = {}
    while isinstance(info, inspect.Metadata):
        extra |= info.extra or {}
        info = info.type
    kind = extra.get("kind", "")
    if isinstance(info, (inspect.IntType, inspect.FloatType)):
        name = {"duration": "a duration such as 90s, 1m30s or 250ms", "size": "a size such as 64KiB or 65536"}
        plain = "a whole number" if isinstance(info, inspect.IntType) else "a number"
        return kind or "integer", name.get(kind, plain) + _bounds(kind, info), ()
    if kind == "address":
        return kind, _ADDRESS if not getattr(info, "min_length", None) else _ADDRESS.removesuffix(_OFF), ()
    if isinstance(info, inspect.LiteralType):
        choices = _choices(hint)
        names = [choice or '""' for choice in choices]
        allowed = f"one of {', '.join(names)}" if len(names) > 1 else f"only {names[0]}, on this slot"
        return "choice", extra.get("allowed") or allowed, choices
    if isinstance(info, inspect.BoolType):
        return "boolean", extra.get("allowed") or "true or false", ()
    if isinstance(info, inspect.DictType):
        return kind or "map", extra["allowed"], ()
    if isinstance(info, inspect.UnionType):
        return "boolean", "true, false or null", ()
    if isinstance(info, inspect.VarTupleType) and isinstance(info.item_type, inspect.StructType):
        what = kind or "queues"
        return what, f"a list of {what}, such as [{{{_EXAMPLES[what]}}}]", ()
    if isinstance(info, inspect.VarTupleType) and kind:
        return kind, extra["allowed"], ()
    if isinstance(info, inspect.VarTupleType):
        return "list", "a list of texts, such as [first, second]", ()
    assert isinstance(info, inspect.StrType)
    length = f" of at most {info.max_length} characters" if info.max_length is not None else ""
    return "text", extra.get("allowed") or ("text, not empty" if info.min_length else f"text{length}"), ()


def _choices(hint: Any) -> tuple[str, ...]:
    """Of a Literal, in the order in which they are declared (msgspec sorts them)."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return tuple(get_args(hint))


def description_of(info: inspect.Type) -> str:
    while isinstance(info, inspect.Metadata):
        if (info.extra_json_schema or {}).get("description"):
            return str((info.extra_json_schema or {})["description"])
        info = info.type
    return ""
