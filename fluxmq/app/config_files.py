"""Whether the files that a configuration names can be read."""
import errno
import os
import stat
from collections.abc import Iterator

__all__ = ["Finding", "readable"]

# (keys, text): what is wrong, reported for the first key; the others are those that it was compared with.
Finding = tuple[tuple[str, ...], str]


def readable(path: str, file: str, hint: str = "") -> Iterator[Finding]:
    """Checks access without opening the file, which may be a pipe that can be read only once. path: its key."""
    try:
        if stat.S_ISDIR(os.stat(file).st_mode):
            yield (path,), f"{file} is a directory, not a file"
        elif not os.access(file, os.R_OK):
            yield (path,), f"cannot read {file}: {os.strerror(errno.EACCES)}"
    except OSError as error:
        yield (path,), f"cannot read {file}: {error.strerror}{hint}"
