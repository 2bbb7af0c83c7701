"""One bit of one file has changed while the broker was down: it refuses to start and names the file, or nothing is
lost, or what is lost is what the damaged bytes held, and that is reported."""
from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from faults.hosts import LocalHost
from faults.story import Lost, Refused, Story, Wrong

from fluxmq.app.log_commands import log

__all__ = ["FILES", "flip", "outcome_of"]

FILES = {"journal": "journal/*.log", "view": "state/*", "segment": "queues/*/*.seg"}
# RocksDB's own notes: nothing is read from them.
NOTES = ("LOG", "OPTIONS", "IDENTITY", "LOCK", "rocksdict")


def flip(data: Path, kind: str, chance: random.Random) -> str:
    """Changes a bit of a file of this kind, somewhere before its zeros at the end. Returns which."""
    files = sorted(path for path in data.glob(FILES[kind])
                   if not path.name.startswith(NOTES) and path.read_bytes().rstrip(b"\0"))
    path = chance.choice(files)
    content = bytearray(path.read_bytes())
    at, bit = chance.randrange(len(content.rstrip(b"\0"))), chance.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"{path.relative_to(data)} byte {at} bit {bit}"


def outcome_of(host: LocalHost, story: Story, kind: str, changed: str) -> dict[str, Any]:
    """Starts the broker on it, after a repair of segments, as an operator does it who has been told."""
    told = {"flip": changed, "outcome": "unharmed", "text": ""}
    data, file = host.place / "data", changed.split()[0]
    story.host = host
    try:
        if kind == "segment":
            _repair_segments(host, story, told, file)
            return told
        try:
            host.start()
        except Refused as refused:
            told["outcome"], told["text"] = "refused", str(refused)
            if str(data / file.partition("/")[0]) not in told["text"] or "Restore" not in told["text"]:
                raise Wrong("that names neither file nor way out") from None
            return told
        assert host.server is not None and host.server.store is not None
        reported = host.server.store.recovery.truncated_bytes           # type: ignore[attr-defined]
        try:
            story.verdict()
        except Wrong:
            if not (reported and kind == "journal"):
                raise
            told["outcome"] = "reported"
    except Wrong as wrong:
        told["outcome"], told["text"] = "WRONG", f"{told['text']} | {wrong}"
    finally:
        story.hang_up()
        host.stop()
    return told


def _repair_segments(host: LocalHost, story: Story, told: dict[str, Any], file: str) -> None:
    data = str(host.place / "data")
    shown = CliRunner().invoke(log, ["verify", data])
    found = next((line for line in shown.output.splitlines() if "DAMAGED" in line), "")
    # Whatever it is, it stops one queue at most, and not the start.
    host.start()
    assert host.server is not None
    stopped = [state.damage for state in host.server.queue_manager.states if state.damage is not None]
    if len(stopped) > 1:
        raise Wrong(f"more than one queue is stopped: {stopped}")
    found = next((line for line in stopped if line), found)
    if found:
        host.stop()
        if file not in found:
            raise Wrong(f"another file is named: {found}")
        repaired = CliRunner().invoke(log, ["repair", data])
        told["outcome"], told["text"] = "repaired", repaired.output
        if repaired.exit_code or "nothing was damaged" in repaired.output:
            raise Wrong("`log repair` did not repair it")
        host.start()
    try:
        story.verdict()
    except Lost as lost:
        if not found or len(lost.topics) > 1 or not next(iter(lost.topics)).startswith("$queue/"):
            raise
