"""One bit of one file has changed, or the file is gone, while the broker was down: it refuses to start and names file
and way out, or one queue stops and does, or nothing is lost, or what is lost is what the damaged bytes held, and that
is reported. Where a way out was named, `fluxmq log repair`, it is gone, and then the broker starts and has lost what
those bytes held at most."""
from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

from faults.hosts import LocalHost
from faults.story import Lost, Refused, Story, Wrong
from kit.command import run
from oracle.stored import JOURNAL_BEGIN, batches_of_journal

__all__ = ["FILES", "files_of", "flip", "outcome_of", "take_away"]

TURNS_MAX = 600             # who waits for more has lost what would have woken him
FILES = {"journal": "journal/*.log", "view": "state/*", "segment": "queues/*/*.seg"}
# RocksDB's own notes: nothing is read from them.
NOTES = ("LOG", "OPTIONS", "IDENTITY", "LOCK", "rocksdict")


def files_of(data: Path, kind: str) -> list[Path]:
    """Those that hold something."""
    return sorted(path for path in data.glob(FILES[kind])
                  if not path.name.startswith(NOTES) and path.read_bytes().rstrip(b"\0"))


def take_away(path: Path, data: Path, kind: str) -> tuple[str, set[int] | None]:
    """As flip() returns it."""
    there: set[int] | None = None
    if kind == "journal":
        there = _messages(path.read_bytes())
    elif path.name.startswith(("CURRENT", "MANIFEST")):
        there = set()           # the tables have everything
    path.unlink()
    return f"{path.relative_to(data)} gone", there


def flip(data: Path, kind: str, chance: random.Random) -> tuple[str, set[int] | None]:
    """Changes a bit of a file of this kind, somewhere before its zeros at the end. Returns which, and the numbers of
    the messages that stood there; None: they cannot be told."""
    path = chance.choice(files_of(data, kind))
    content = bytearray(path.read_bytes())
    before = bytes(content)
    at, bit = chance.randrange(len(content.rstrip(b"\0"))), chance.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    there: set[int] | None = None
    if kind == "journal":
        there = _messages(_batch_with(before, at))
    elif path.name.startswith(("CURRENT", "MANIFEST")):
        there = set()           # the tables have everything
    return f"{path.relative_to(data)} byte {at} bit {bit}", there


def _messages(records: bytes) -> set[int]:
    """Numbers at the beginning of their payloads."""
    return {int(found) for found in re.findall(rb"(\d{6})\|", records)}


def _batch_with(journal: bytes, at: int) -> bytes:
    """The batch of a journal file that has this byte, header and all; the whole file for its header; or nothing."""
    if at < JOURNAL_BEGIN:
        return journal
    return next((journal[one.begin:one.end] for one in batches_of_journal(journal, torn=True) if at < one.end), b"")


def outcome_of(host: LocalHost, story: Story, kind: str, changed: str, there: set[int] | None) -> dict[str, Any]:
    """Starts the broker on it, and again after a repair, as an operator does it who has been told to. changed, there:
    as flip() or take_away() has it."""
    told = {"flip": changed, "outcome": "unharmed", "text": ""}
    data, file = host.place / "data", changed.split()[0]
    story.host = host
    try:
        if kind == "segment":
            _repair_segments(host, story, told, str(Path(file).parent) if changed.endswith("gone") else file)
            return told
        try:
            host.start()
        except Refused as refused:
            told["outcome"], told["text"] = "refused", str(refused)
            if str(data / file.partition("/")[0]) not in told["text"] or "Restore" not in told["text"]:
                raise Wrong("that names neither file nor way out") from None
            _repair(host, story, told, kind, there)
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


def _repair(host: LocalHost, story: Story, told: dict[str, Any], kind: str, there: set[int] | None) -> None:
    """The start was refused."""
    data = str(host.place / "data")
    status, said = run("log", "repair", data)
    if status or "nothing was damaged" in said:
        raise Wrong(f"`log repair` did not repair it: {said}")
    told["outcome"], told["text"] = "repaired", said
    status, said = run("log", "verify", data)
    if status:
        raise Wrong(f"it is damaged still: {said}")
    host.start()
    if there is None:
        return                  # whose session or queue it was is nobody's to say
    if there:
        host.turns_max = TURNS_MAX
    try:
        story.verdict()
    except Lost as lost:
        if not lost.numbers <= there:
            raise
    except Wrong:
        # A settlement, a session, a queue: what else a batch says.
        if not there:
            raise


def _repair_segments(host: LocalHost, story: Story, told: dict[str, Any], file: str) -> None:
    data = str(host.place / "data")
    _, shown = run("log", "verify", data)
    found = next((line for line in shown.splitlines() if "DAMAGED" in line), "")
    # Whatever it is, it stops one queue at most, and not the start.
    host.start()
    assert host.server is not None
    stopped = [state.damage for state in host.server.queues.manager.states if state.damage is not None]
    if len(stopped) > 1:
        raise Wrong(f"more than one queue is stopped: {stopped}")
    found = next((line for line in stopped if line), found)
    if found:
        host.stop()
        if file not in found:
            raise Wrong(f"another file is named: {found}")
        status, said = run("log", "repair", data)
        told["outcome"], told["text"] = "repaired", said
        # What the file held may have been settled in the journal: the start has applied that, and its stop has written
        # it to the view. Then nothing is missing any more, and there is nothing to repair.
        if status or ("nothing was damaged" in said and run("log", "verify", data)[0]):
            raise Wrong(f"`log repair` did not repair it: {said}")
        host.start()
    try:
        story.verdict()
    except Lost as lost:
        if not found or len(lost.topics) > 1 or not next(iter(lost.topics)).startswith("$queue/"):
            raise
