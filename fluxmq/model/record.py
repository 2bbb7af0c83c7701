"""The section `record` of the configuration: traffic recorded for as long as the broker runs. See docs/recording.md."""
from typing import Annotated, Literal

from msgspec import Meta, Struct

from fluxmq.model.listeners import Bytes, Seconds

__all__ = [
    "RECORD_PROTOCOLS",
    "RING_BYTES_MIN",
    "VIEW_RING_BYTES",
    "VIEW_RING_BYTES_MAX",
    "VIEW_RING_BYTES_MIN",
    "Record",
]

RECORD_PROTOCOLS = ("mqtt", "amqp091")
RING_BYTES_MIN = 4 << 20  # a quarter of it holds the largest single read
# Of a live view. When the ring is full the broker only counts, so a view costs it at most one ring for each frame.
VIEW_RING_BYTES = 256 << 10
VIEW_RING_BYTES_MIN, VIEW_RING_BYTES_MAX = 64 << 10, 8 << 20


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recording of traffic, from start to stop. `fluxmq record` records a broker for a while instead."""

    enabled: Annotated[bool, Meta(description=(
        "Record from start to stop, by a process of its own. Recordings are Parquet: pip install '.[record]' in the "
        "checkout."
    ))] = False
    dir: Annotated[str, Meta(min_length=1, description=(
        "Directory of recordings, made when it is missing, for the broker's own user. Each start makes a new one in "
        "it, named by date and time."))] = "./fluxmq-recordings"
    topics: Annotated[tuple[str, ...], Meta(description=(
        "Record only PUBLISH packets whose topic one of these filters matches (AMQP: routing keys, with `/` for `.`), "
        "and what is not PUBLISH. Empty: all."))] = ()
    clients: Annotated[tuple[str, ...], Meta(description=(
        "Record only these client ids; * and ? stand for any characters and any one. Empty: all."))] = ()
    protocols: Annotated[tuple[str, ...], Meta(description=(
        "Record only these: mqtt, amqp091. Empty: both."))] = ()
    sample: Annotated[int, Meta(ge=1, le=100, description=(
        "Per cent of clients that are recorded, each whole; which ones depends on the client id alone."))] = 100
    payload: Annotated[Literal["full", "hash", "size"], Meta(description=(
        "Of payloads: full, all bytes; hash, a digest and the size; size, the size alone."))] = "hash"
    max_rows: Annotated[int, Meta(ge=1, le=100_000_000, description=(
        "A file is closed at so many rows. More are written in several row groups."))] = 131_072
    max_size: Annotated[Bytes, Meta(ge=1 << 16, description="A file is closed at this size.")] = 256 << 20
    max_time: Annotated[Seconds, Meta(ge=0.1, description=(
        "A file is closed after this time. What is not closed is lost when the machine or the writer fails."))] = 10.0
    max_disk: Annotated[Bytes, Meta(description=(
        "Recording ends when the files in dir have this size together. 0B = no cap."))] = 0
    ring_size: Annotated[Bytes, Meta(ge=RING_BYTES_MIN, le=2 << 30, description=(
        "Memory between broker and writer, rounded down to a power of two. What the writer is behind by more than that "
        "is not recorded, and counted."))] = 64 << 20
