"""`fluxmq log …`: look through the files of a storage directory while no broker uses it, and repair them."""
from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from fluxmq._core.errors import StorageError
from fluxmq.app import exit_codes

__all__ = ["log"]

_directory = click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))


@click.group()
def log() -> None:
    """Verify, show and repair what is in a storage directory DIR (storage.dir of the configuration)."""


@contextmanager
def _reading(directory: Path) -> Iterator[None]:
    """Reports errors of the disk as messages instead of tracebacks."""
    try:
        if not any((directory / name).is_dir() for name in ("queues", "journal", "state")):
            raise StorageError(f"{directory} has no directory `queues`, `journal` or `state`: it is not the storage "
                               f"directory of a broker")
        yield
    except OSError as error:
        raise StorageError(f"cannot read {error.filename or directory}: {error.strerror or error}") from error


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Locks the directory inside the block, as storage/store.py does."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError(f"a broker uses {directory} (its file `lock` is held). Stop it before repairing") \
                from None
        yield
    finally:
        os.close(fd)


@log.command("verify")
@_directory
def log_verify(directory: Path) -> int:
    """Read everything and change nothing. Exits with status 1 if anything is damaged."""
    from fluxmq.storage.repair import synced_offsets, verify_state
    from fluxmq.storage.segment_repair import verify

    damaged = files = messages = 0
    with _reading(directory):
        if _in_use(directory):
            click.echo(f"note: a broker uses {directory}. What it is just writing may look torn or damaged here: "
                       f"stop it for a result that counts")
        for report in verify(directory, synced_offsets(directory)):
            files, messages = files + report.path.is_file(), messages + report.messages
            state = "DAMAGED" if report.problems else "intact"
            click.echo(f"{report.path.relative_to(directory)}: {state}, {report.messages} messages, "
                       f"{report.bytes} bytes")
            for line in report.problems:
                click.echo(f"  {line}")
            for line in report.notes:
                click.echo(f"  note: {line}")
            damaged += bool(report.problems)
        click.echo(f"queues: {files} files, {messages} messages, {damaged} damaged")
        whole = verify_state(directory)
    if whole.journal_end is not None:
        found = whole.journal_end
        held = f"batches {found.first} to {found.last}" if found.last else "no batches"
        if found.truncated_bytes:
            from fluxmq.app.recovered import TORN

            click.echo(f"journal: {held}; the {found.truncated_bytes} bytes behind them in {found.truncated_file}, "
                       f"from offset {found.truncated_at} on, do not hold, and the next start cuts them off. {TORN}")
        else:
            click.echo(f"journal: intact, {held}")
    for title, lines in (("journal", whole.journal), ("state", whole.state)):
        if lines:
            click.echo(f"{title}: DAMAGED")
            damaged += 1
        for line in lines:
            click.echo(f"  {line}")
    if not whole.state:
        view = whole.view
        cut = "; its last checkpoint was cut short, and the next start ends it" if view.parts else ""
        click.echo(f"state: intact, {view.keys} keys, reaches batch {view.applied}{cut}" if view.keys or view.parts else
                   "state: nothing in it yet")
    if damaged:
        click.echo(f"Restore {directory} from a copy; or, with the broker stopped, `fluxmq log repair {directory}` "
                   f"keeps everything that holds and says what is lost")
    return exit_codes.FAILURE if damaged else exit_codes.OK


def _in_use(directory: Path) -> bool:
    try:
        fd = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


@log.command("dump")
@_directory
@click.option("--log", "number", metavar="NUMBER", help="Only this log; its number in hex, as its directory is called.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line; bytes that are no UTF-8 as hex.")
def log_dump(directory: Path, number: str | None, as_json: bool) -> int:
    """Print every message, one per line. Rows of the state that do not hold come as hex, with the reason; then it ends
    with 1."""
    from fluxmq.engine.stored import shown
    from fluxmq.storage.repair import BadRow, dump

    try:
        wanted = None if number is None else int(number, 16)
    except ValueError:
        raise click.UsageError(f"{number} is no number in hex") from None
    status: int = exit_codes.OK
    with _reading(directory):
        for item in dump(directory, wanted):
            if isinstance(item, BadRow):
                status = exit_codes.FAILURE
                row = {"damaged": shown(item.key), "key": item.key.hex(), "value": item.value.hex(),
                       "problem": item.problem}
                click.echo(json.dumps(row, ensure_ascii=False) if as_json else
                           f"DAMAGED {row['damaged']}: {item.problem}: key {row['key']} value {row['value']}")
                continue
            which, (offset, time_ms, expires_at, not_before, qos, priority, topic, properties, payload) = item
            name = topic.decode("utf-8", "backslashreplace")
            if not as_json:
                click.echo(f"{which:016x} {offset} {time_ms} qos={qos} priority={priority} {name} "
                           f"{payload[:64]!r}{'…' if len(payload) > 64 else ''}")
                continue
            line = {"log": which, "offset": offset, "time_ms": time_ms, "expires_at": expires_at,
                    "not_before": not_before, "qos": qos, "priority": priority, "topic": name,
                    "properties": properties.hex()}
            try:
                line["payload"] = payload.decode()
            except UnicodeDecodeError:
                line["payload_hex"] = payload.hex()
            click.echo(json.dumps(line, ensure_ascii=False))
    return status


@log.command("repair")
@_directory
def log_repair(directory: Path) -> None:
    """Make damaged files usable again and say what was given up. What is whole is not touched. Not while a broker runs.
    """
    from fluxmq.storage.repair import repair

    with _reading(directory), _locked(directory):
        report = repair(directory)
    for title, lines in (("given up", report.given_up), ("kept aside", report.kept_aside),
                         ("cut off", report.cut_off), ("made again", report.made_again)):
        for line in lines:
            click.echo(f"{title}: {line}")
    click.echo(f"{directory}: " + ("repaired; what is kept aside can be removed when it is not needed any more"
                                   if report.kept_aside else "repaired" if report.anything else "nothing was damaged"))
