"""_manifest.json of a recording: what was recorded where, and the parts that there are.

It is replaced as a whole, by rename, so a reader finds either the one before or the one after. What is no data has a
name that begins with an underscore: Spark, pandas and pyarrow pass over it when they read the directory by its name.
Version 1 of the format named it manifest.json, and is read.
"""
import os
import platform
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from fluxmq._core.errors import FluxError
from fluxmq.record.options import BrokerAbout, ClusterAbout, RecordOptions

__all__ = ["MANIFEST", "Broker", "Machine", "Manifest", "Part", "RecordingError", "new_manifest", "read_manifest",
           "sync_directory", "write_manifest"]

MANIFEST = "_manifest.json"
MANIFEST_1 = "manifest.json"
FORMAT = "fluxmq-recording"
VERSION = 2


class RecordingError(FluxError):
    """A recording, or a file of one, cannot be used. The text names it and says what is wrong."""


class Part(Struct, kw_only=True):
    """One closed file. bytes: of the file. first_time, last_time: ns since 1970."""

    name: str
    rows: int
    bytes: int
    first_time: int
    last_time: int


class Broker(Struct, kw_only=True):
    """The recorded broker; version is empty if unknown."""

    name: str = "fluxmq"
    version: str = ""


class Machine(Struct, kw_only=True):
    """Where. memory: bytes."""

    system: str = ""
    processors: int = 0
    memory: int = 0


class Manifest(Struct, kw_only=True):
    """See docs/recording.md. Times are ns since 1970; ended is null while the recording runs, or was cut off."""

    format: str = FORMAT
    version: int = VERSION
    id: str = ""
    source: str = "broker"
    broker: Broker = field(default_factory=Broker)
    cluster: ClusterAbout = ClusterAbout()
    config_digest: str = ""
    machine: Machine = field(default_factory=Machine)
    options: dict[str, Any] = field(default_factory=dict)
    started: int = 0
    ended: int | None = None
    end: str = ""
    rows: int = 0
    lost_entries: int = 0
    lost_bytes: int = 0
    filtered_rows: int = 0
    undecoded_bytes: int = 0
    parts: list[Part] = field(default_factory=list)


def new_manifest(options: RecordOptions, about: BrokerAbout, *, source: str = "broker") -> Manifest:
    """Of a recording that begins now, on this machine."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    machine = Machine(system=f"{platform.system()} {platform.release()} {platform.machine()}",
                      processors=os.cpu_count() or 0, memory=memory)
    return Manifest(id=str(uuid.uuid4()), source=source, broker=Broker(name=about.name, version=about.version),
                    cluster=about.cluster, config_digest=about.config_digest, machine=machine,
                    options=msgspec.json.decode(msgspec.json.encode(options)), started=time.time_ns())


def sync_directory(directory: Path) -> None:
    """Renames in it are on disk when this returns. OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replaces the manifest of that recording; it is on disk when this returns. OSError."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    fresh = directory / f"{MANIFEST}.new"
    # Like its parts, readable for its owner only.
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(text + b"\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(directory / MANIFEST)
    sync_directory(directory)


def _version_of(path: Path, text: bytes) -> int:
    """Of what says that it is a recording's manifest. Looked at before the rest: a newer one may have any form."""
    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise RecordingError(f"{path}: this is not JSON ({error}); the manifest is damaged or was cut off") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RecordingError(f"{path}: this is not the manifest of a recording of FluxMQ (`format` must be {FORMAT!r})")
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise RecordingError(f"{path}: `version` must be a number from 1, not {version!r}")
    return version


def read_manifest(directory: Path) -> Manifest:
    """The manifest of the recording in that directory. Raises RecordingError."""
    path = directory / MANIFEST
    try:
        # Within: of a path that is too long, or that may not be looked at, `exists` raises too.
        if not path.exists() and (directory / MANIFEST_1).exists():
            path = directory / MANIFEST_1
        text = path.read_bytes()
    except FileNotFoundError as error:
        what = f"this is not a recording: no {MANIFEST} in it" if directory.exists() else "there is no such directory"
        raise RecordingError(f"{directory}: {what}") from error
    except NotADirectoryError as error:
        raise RecordingError(f"{directory}: a recording is a directory, and this is a file") from error
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror}") from error
    version = _version_of(path, text)
    if version > VERSION:
        raise RecordingError(f"{path}: version {version} of the format is newer than this FluxMQ, which reads up to "
                             f"{VERSION}; read it with a later one")
    try:
        return msgspec.json.decode(text, type=Manifest)
    except msgspec.ValidationError as error:
        raise RecordingError(f"{path}: the manifest is damaged: {error}") from error
