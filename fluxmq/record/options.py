"""Options, source and progress of a recording: the types that broker, command and writer share.

As JSON (msgspec) they travel to the writer's process and, RecordOptions, into the manifest.
"""
from typing import Literal

from msgspec import Struct

__all__ = ["PAYLOADS", "PROTOCOLS", "BrokerAbout", "ClusterAbout", "Progress", "RecordOptions"]

PAYLOADS = ("full", "hash", "size")
PROTOCOLS = ("mqtt", "amqp091")


class RecordOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written, and how it is cut into parts.

    topics: filters of MQTT; a PUBLISH whose topic (AMQP: routing key, `.` read as `/`) matches none is left out, with
    what acknowledges it. clients: client ids, or patterns of fnmatch(3) (`sensor-*`); who matches none is left out
    whole. protocols: names of PROTOCOLS. Empty: all. sample: share of clients kept whole, over 0 up to 1, chosen by a
    hash of the client id. payload: full, the bytes and their digest; hash, the digest; size, neither. max_rows,
    max_bytes, max_seconds: a part is closed as soon as it reaches one of them; with these defaults each is one row
    group, and no more is lost by kill -9 than the one that is open. cap_bytes: the recording ends when its
    parts have so many together; 0 = no cap.
    """

    topics: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    protocols: tuple[Literal["mqtt", "amqp091"], ...] = ()
    sample: float = 1.0
    payload: Literal["full", "hash", "size"] = "hash"
    max_rows: int = 131_072
    max_bytes: int = 256 << 20
    max_seconds: float = 10.0
    cap_bytes: int = 0


class ClusterAbout(Struct, frozen=True, kw_only=True):
    """Which node of which cluster is recorded. id: of the cluster; empty: the broker is by itself, or had not joined.
    node: its name. nodes: names of all that had a lease when the recording began, this one too."""

    id: str = ""
    node: str = ""
    nodes: tuple[str, ...] = ()


class BrokerAbout(Struct, frozen=True, kw_only=True):
    """Which broker is recorded. config_digest: SHA-256 of `config show`, hexadecimal; empty: of a capture."""

    name: str = "fluxmq"
    version: str = ""
    config_digest: str = ""
    cluster: ClusterAbout = ClusterAbout()


class Progress(Struct, frozen=True, kw_only=True):
    """How far a recording is. bytes: of the parts on disk, the open one as far as it is written."""

    rows: int = 0
    bytes: int = 0
    parts: int = 0
    filtered_rows: int = 0
    lost_entries: int = 0
    lost_bytes: int = 0
