"""Loss of power for tests: run a program over a disk that forgets, kill it, look at what is left.

    cut = PowerCut(tmp_path)
    process = subprocess.Popen([...], env=os.environ | cut.env)     # works on files in cut.live
    ...
    process.kill(); process.wait()
    cut.restore(tmp_path / "after")                                 # what was synced, nothing else
    cut.restore(tmp_path / "torn", torn=random.Random(7))           # and of the rest some, by chance

powercut.c says what counts as synced. Torn mode adds what a disk may have done on its own by then: each sector of 512
bytes that differs holds the new or the old content, a grown file may have kept any part of its growth (zeros where the
content did not arrive), and each directory holds the new names, the old, or of each some. What belongs together stays
so: a rename happened or it did not, and so did what took a name from another file (`mixed_names`).
"""
from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
from collections.abc import Hashable
from pathlib import Path
from typing import TypeVar

import pytest

SECTOR = 512
FOLDERS = ("files", "dirs", "lost")
SOURCE = Path(__file__).with_name("powercut.c")


def build(directory: Path) -> Path:
    """Compile the library into `directory`, once."""
    library = directory / "powercut.so"
    if not library.exists():
        gcc = shutil.which("gcc")
        if gcc is None:
            if os.environ.get("FLUXMQ_REQUIRE_TOOLS") == "1":
                pytest.fail("gcc is missing (Debian package gcc)")
            pytest.skip("gcc is missing (Debian package gcc)")
        subprocess.run([gcc, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, SOURCE, "-ldl",
                        "-lpthread"], check=True)
    return library


class PowerCut:
    """A directory `live`, and what of it would survive. `live` may be given; what it holds then counts as durable. The
    process that has the library preloaded may make one as well, of the same `base`."""

    def __init__(self, base: Path, live: Path | None = None) -> None:
        base.mkdir(parents=True, exist_ok=True)
        self.live = (live or base / "live").resolve()
        self.live.mkdir(exist_ok=True)
        self.shadow = base.resolve() / "shadow"
        for folder in FOLDERS:
            (self.shadow / folder).mkdir(parents=True, exist_ok=True)
        self.library = build(base)
        self._id = ctypes.CDLL(str(self.library), use_errno=True).powercut_id
        self._id.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p]

    @property
    def env(self) -> dict[str, str]:
        """What to add to the environment of the program."""
        # Behind what is there already: AddressSanitizer wants to be first.
        preload = " ".join(filter(None, (os.environ.get("LD_PRELOAD"), str(self.library))))
        return {"LD_PRELOAD": preload, "POWERCUT_DIR": str(self.live), "POWERCUT_SHADOW": str(self.shadow)}

    def restore(self, target: Path, torn: random.Random | None = None, below: Path | None = None) -> Path:
        """Make `target` what the loss of power left, of `below` only if that is given. The program must be dead, or
        hold still."""
        live = self._live_files(below or self.live) if torn is not None else {}
        root = (self.shadow / "root").read_text() if below is None else self._identity(below)
        self._restore_directory(root, below or self.live, target, live, torn)
        return target

    def moved(self, source: Path, copy: Path) -> None:
        """The second is what the page cache has of the first, which is about to go: what the medium has of the one it
        has of the other. Nobody changes either meanwhile."""
        paths = [source, *(path for path in source.rglob("*") if path.is_file() or path.is_dir())]
        named = {self._identity(path): self._identity(copy / path.relative_to(source)) for path in paths}
        for old, new in named.items():
            for folder in FOLDERS:
                kept, target = self.shadow / folder / old, self.shadow / folder / new
                if folder != "dirs" and kept.exists():
                    shutil.copyfile(kept, target)
            entries = [f"{kind}{named.get(child, child)}/{name}\0" for kind, child, name in self._names(old, {}, None)]
            if (self.shadow / "dirs" / old).exists():
                (self.shadow / "dirs" / new).write_bytes("".join(entries).encode())

    def forget(self) -> None:
        """What was synced so far is nobody's any more: `live` is empty."""
        for folder in FOLDERS:
            for kept in (self.shadow / folder).iterdir():
                kept.unlink()

    def rest(self, whether: bool) -> None:
        """In a process that has the library preloaded: nobody will ask for what is synced from now on, or somebody
        will again. What was there before is not known then, so that `live` is to be empty."""
        ctypes.CDLL(str(self.library)).powercut_rest(int(whether))

    def _identity(self, path: Path) -> str:
        raw = ctypes.create_string_buffer(80)
        if self._id(-100, os.fsencode(path), raw) != 0:
            raise OSError(ctypes.get_errno(), str(path))
        return raw.value.decode()

    def _live_files(self, top: Path) -> dict[str, Path]:
        kept = [path for path in top.rglob("*") if path.is_file() or path.is_dir()]     # no sockets
        return {self._identity(path): path for path in kept} | {self._identity(top): top}

    def _names(self, identity: str, live: dict[str, Path], torn: random.Random | None) -> list[tuple[str, str, str]]:
        """(kind, id, name) of one directory."""
        kept, synced = self.shadow / "dirs" / identity, {}
        for entry in kept.read_bytes().split(b"\0")[:-1] if kept.exists() else []:
            child, name = entry[1:].decode().split("/", 1)
            synced[name] = entry[:1].decode(), child
        if torn is not None and identity in live:
            now = {path.name: ("d" if path.is_dir() else "f", self._identity(path))
                   for path in sorted(live[identity].iterdir()) if path.is_file() or path.is_dir()}
            synced = mixed_names(synced, now, torn)
        return [(kind, child, name) for name, (kind, child) in synced.items()]

    def _restore_directory(self, identity: str, source: Path, target: Path, live: dict[str, Path],
                           torn: random.Random | None) -> None:
        target.mkdir()
        for kind, child, name in self._names(identity, live, torn):
            if kind == "d":
                self._restore_directory(child, source / name, target / name, live, torn)
                continue
            kept = self.shadow / "files" / child
            content = kept.read_bytes() if kept.exists() else b""
            if torn is not None and child in live:
                content = mix(content, live[child].read_bytes(), torn)
            (target / name).write_bytes(content)


Entry = TypeVar("Entry", bound=Hashable)


def mixed_names(old: dict[str, Entry], new: dict[str, Entry], chance: random.Random) -> dict[str, Entry]:
    """Names of a directory that may be there: all old ones, all new ones, or of each change by itself whether it
    happened. A value says which file it is; names that share a file, in either, change together, for a rename and a
    replacement are one change."""
    how = chance.choice(("old", "new", "mixed"))
    if how != "mixed":
        return dict(old if how == "old" else new)
    found: dict[str, Entry] = {}
    left = sorted(old.keys() | new.keys())
    while left:
        together, files = {left[0]}, set()
        while True:
            files = {names[name] for names in (old, new) for name in together if name in names}
            more = {name for name in left if {names[name] for names in (old, new) if name in names} & files}
            if more == together:
                break
            together = more
        source = chance.choice((old, new))
        found |= {name: source[name] for name in sorted(together) if name in source}
        left = [name for name in left if name not in together]
    return found


def mix(old: bytes, new: bytes, chance: random.Random) -> bytes:
    """What a file may hold that was `old` when it was synced and `new` when power went."""
    if old == new:
        return old
    low, high = sorted((len(old), len(new)))
    size = chance.choice((low, high, chance.randint(low, high)))
    result = bytearray()
    for at in range(0, size, SECTOR):
        piece = chance.choice((old, new))[at:at + SECTOR]
        result += piece.ljust(min(SECTOR, size - at), b"\0")
    return bytes(result[:size])
