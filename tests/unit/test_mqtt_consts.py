"""One list of numbers, written twice: the C enums of the core and the Python enums of the model must agree."""
import re
from enum import IntEnum
from pathlib import Path

import fluxmq
from fluxmq._core.mqtt.props import property_table
from fluxmq.model import mqtt

HEADER = (Path(fluxmq.__file__).parent / "_core" / "mqtt/consts.pxd").read_text()


def of_header(prefix: str) -> dict[str, int]:
    found = re.findall(r"^    ([A-Z0-9_]+) = (0x[0-9A-F]+|\d+)", HEADER, re.MULTILINE)
    known = ("LEVEL_", "PROPERTY_", "REASON_")
    if prefix:
        return {name.removeprefix(prefix): int(value, 0) for name, value in found if name.startswith(prefix)}
    return {name: int(value, 0) for name, value in found if not name.startswith(known)}


def of_enum(enum: type[IntEnum]) -> dict[str, int]:
    return {name: int(value) for name, value in enum.__members__.items()}


def test_packet_types() -> None:
    assert of_enum(mqtt.PacketType) == of_header("")
    assert len(mqtt.PacketType) == 16


def test_reason_codes() -> None:
    assert of_enum(mqtt.ReasonCode) == of_header("REASON_")
    assert len(mqtt.ReasonCode) == 43


def test_properties() -> None:
    assert of_enum(mqtt.Property) == of_header("PROPERTY_")
    assert {entry.name.lower(): int(entry) for entry in mqtt.Property} == {row[1]: row[0] for row in property_table()}
