"""Whether the files that a configuration names can be read, and what is wrong in them."""
from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fluxmq._core.errors import ConfigError
    from fluxmq.model.config import Config

__all__ = ["Finding", "problems_of_files", "readable"]

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


def problems_of_files(config: Config, *, certificates: bool) -> list[ConfigError]:
    """What is wrong in the users file and the access list, and in certificates, if the keys about them are right. A
    file that cannot be read is left out: readable() has told that."""
    # Imported here: a start reads these files, and says the first that is wrong.
    from fluxmq._core.errors import ConfigError
    from fluxmq.access.acl_file import acl_problems
    from fluxmq.access.users import users_problems
    from fluxmq.app.certificates import check_certificates

    found = [ConfigError("", problem) for problem in check_certificates(config)] if certificates else []
    for file, problems in ((config.auth.users_file, users_problems), (config.auth.acl_file, acl_problems)):
        if file and os.access(file, os.R_OK):
            found += problems(file)
    return found
