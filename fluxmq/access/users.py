"""The users file: who exists, and what is stored of each password. A cluster that keeps its users in etcd has the same
of each there (app/accounts.py).

    fluxmq-users 1 <decoy key, 16 bytes in base64>
    # lines like this one, and empty ones, are kept as they are
    <name> <argon2id hash> <SCRAM-SHA-256 verifier> [namespace=<percent-encoded name>]

One user per line, so that a change is one line of a diff. The number is the version of the format. Two secrets per
user, because neither can be made from the other: the argon2id hash (`$argon2id$v=19$m=...`) checks a password that a
CONNECT carries, the verifier (`SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey`) one that is only proved (scram.py).
A user with a namespace may enter no other.
The decoy key makes the salts of unknown names; it is stored so that such a salt is as lasting as a real one.

Names are compared as they are; a name must be equal to its own SASLprep form, so that both roads find the same user.
"""
import base64
import contextlib
import fcntl
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, unquote

from fluxmq._core.errors import ConfigError
from fluxmq.access.scram import ITERATIONS_DEFAULT, SALT_SIZE_BYTES, ScramVerifier, saslprep
from fluxmq.model.namespaces import namespace_problem

__all__ = ["DECOY_KEY_SIZE_BYTES", "User", "Users", "add_user", "list_users", "read_users", "remove_user",
           "users_problems"]

FORMAT_VERSION = 1
NAME_SIZE_CHARS_MAX = 255
DECOY_KEY_SIZE_BYTES = 16
# A damaged or hostile file must not make one login take all memory: 1 GiB and 64 passes are far above any advice.
ARGON2_MEMORY_KIB_MAX = 1 << 20
ARGON2_PASSES_MAX = 64
ARGON2_LANES_MAX = 16
_NAMESPACE = "namespace="

_ARGON2 = re.compile(
    r"\$argon2id\$v=19\$m=(\d{1,9}),t=(\d{1,6}),p=(\d{1,6})\$([A-Za-z0-9+/]{11,88})\$([A-Za-z0-9+/]{16,128})")


@dataclass(frozen=True, slots=True)
class User:
    """One line of the file. namespace: "" for a user that may enter any."""

    name: str
    password_hash: str = field(repr=False)
    scram: ScramVerifier = field(repr=False)
    namespace: str = ""

    @classmethod
    def make(cls, name: str, password: str, *, namespace: str = "",
             scram_iterations: int = ITERATIONS_DEFAULT) -> "User":
        """Hash `password`, with fresh salts; about 50 ms. Raises ConfigError when name, password or namespace cannot be
        used."""
        if namespace and (problem := namespace_problem(namespace)):
            raise ConfigError("namespace", problem)
        problem = _name_problem(name)
        if problem:
            raise ConfigError("user name", problem)
        if not password:
            raise ConfigError("password", "may not be empty")
        try:
            verifier = ScramVerifier.make(password, secrets.token_bytes(SALT_SIZE_BYTES), scram_iterations)
        except ValueError as error:
            raise ConfigError("password", str(error)) from None
        return cls(name, _hash(password), verifier, namespace)

    @classmethod
    def of(cls, name: str, password_hash: str, verifier: str, namespace: str = "") -> "User":
        """What was stored of a user. Raises ValueError when it cannot be used, with what is wrong."""
        if namespace and (problem := namespace_problem(namespace)):
            raise ValueError(f"the namespace {problem}")
        if problem := _name_problem(name):
            raise ValueError(f"the user name {problem}")
        _check_hash(password_hash)
        return cls(name, password_hash, ScramVerifier.parse(verifier), namespace)

    def __str__(self) -> str:
        bound = f" {_NAMESPACE}{quote(self.namespace)}" if self.namespace else ""
        return f"{self.name} {self.password_hash} {self.scram}{bound}"


@dataclass(slots=True)
class _Document:
    """The file as lines, comments included, so that editing it leaves the rest alone."""

    decoy_key: bytes
    lines: list[str | User]

    def users(self) -> Iterator[User]:
        return (line for line in self.lines if isinstance(line, User))

    def __str__(self) -> str:
        head = f"fluxmq-users {FORMAT_VERSION} {base64.b64encode(self.decoy_key).decode()}"
        return "\n".join([head, *map(str, self.lines)]) + "\n"


class Users:
    """Value. All users of one reading of the file."""

    def __init__(self, users: dict[str, User], decoy_key: bytes) -> None:
        self._users = users
        self.decoy_key = decoy_key
        counts = Counter(user.scram.iterations for user in users.values())
        # An unknown user is treated like the commonest one, or the difference would reveal it.
        self.decoy_iterations = counts.most_common(1)[0][0] if counts else ITERATIONS_DEFAULT
        self._decoy_hash = _decoy_hash(users)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Users":
        """Read the file. Raises ConfigError(file, text with line number) when it is missing or damaged."""
        document = _read(Path(path))
        return cls({user.name: user for user in document.users()}, document.decoy_key)

    def __contains__(self, name: object) -> bool:
        return name in self._users

    def __len__(self) -> int:
        return len(self._users)

    def names(self) -> list[str]:
        return list(self._users)

    def namespace(self, name: str) -> str:
        """The only namespace that this user may enter; "" for any."""
        user = self._users.get(name)
        return "" if user is None else user.namespace

    def scram(self, name: str) -> ScramVerifier | None:
        """What ScramServer looks up."""
        user = self._users.get(name)
        return None if user is None else user.scram

    def password_hash(self, name: str) -> str:
        """The encoded argon2id hash of `name`; of an unknown name, one that no password matches, with the same cost."""
        user = self._users.get(name)
        return self._decoy_hash if user is None else user.password_hash


def add_user(path: str | os.PathLike[str], name: str, password: str, *, namespace: str | None = None,
             scram_iterations: int = ITERATIONS_DEFAULT) -> None:
    """Add `name`, or give it a new password; the file is made if there is none, and replaced in one step.

    namespace: the only one that the user may enter; "" for any, None leaves it as it is. Raises ConfigError when name,
    password or namespace cannot be used, or the file is damaged or cannot be written.
    """
    user = User.make(name, password, namespace=namespace or "", scram_iterations=scram_iterations)
    with _locked(Path(path)) as file:
        if file.exists():
            document = _read(file)
        else:
            document = _Document(secrets.token_bytes(DECOY_KEY_SIZE_BYTES), [])
        former = next((old for old in document.users() if old.name == name), None)
        if former is not None:
            if namespace is None:
                user = replace(user, namespace=former.namespace)
            document.lines = [user if isinstance(line, User) and line.name == name else line for line in document.lines]
        else:
            document.lines.append(user)
        _replace(file, str(document))


def remove_user(path: str | os.PathLike[str], name: str) -> bool:
    """Remove `name`; False when there was no such user. Raises ConfigError as add_user does."""
    with _locked(Path(path)) as file:
        document = _read(file)
        kept = [line for line in document.lines if not (isinstance(line, User) and line.name == name)]
        if len(kept) == len(document.lines):
            return False
        document.lines = kept
        _replace(file, str(document))
        return True


def list_users(path: str | os.PathLike[str]) -> list[str]:
    """The names, in the order of the file. Raises ConfigError when the file is missing or damaged."""
    return [user.name for user in read_users(path)]


def read_users(path: str | os.PathLike[str]) -> list[User]:
    """All users, in the order of the file. Raises ConfigError when the file is missing or damaged."""
    return list(_read(Path(path)).users())


def _name_problem(name: str) -> str:
    if not 1 <= len(name) <= NAME_SIZE_CHARS_MAX:
        return f"has {len(name)} characters; 1 to {NAME_SIZE_CHARS_MAX} are allowed"
    if name.startswith("#"):
        return "may not begin with '#', which begins a comment"
    if not name.isprintable() or any(char.isspace() for char in name):
        return "may not contain spaces or control characters"
    try:
        if saslprep(name) != name:
            return f"is not in its normal form, which is {saslprep(name)!r}"
    except ValueError as error:
        return str(error)
    return ""


def _hash(password: str) -> str:
    # Not at the top: a broker without users has no use for it, and it takes a part of its start.
    from argon2 import PasswordHasher, Type

    # The OWASP cheat sheet's first choice: 19 MiB, two passes, one lane; 23 ms of one core.
    return PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1, type=Type.ID).hash(password)


def _decoy_hash(users: dict[str, User]) -> str:
    counts = Counter(user.password_hash.split("$")[3] for user in users.values())
    parameters = counts.most_common(1)[0][0] if counts else "m=19456,t=2,p=1"

    def plain(size_bytes: int) -> str:
        return base64.b64encode(secrets.token_bytes(size_bytes)).decode().rstrip("=")

    return f"$argon2id$v=19${parameters}${plain(16)}${plain(32)}"


def users_problems(path: str | os.PathLike[str]) -> list[ConfigError]:
    """What is wrong with the file: with each of its lines, or with all of it."""
    wrong: list[ConfigError] = []
    try:
        _read(Path(path), wrong.append)
    except ConfigError as error:
        return [error]
    return wrong


def _raise(error: ConfigError) -> None:
    raise error


def _read(path: Path, on_wrong: Callable[[ConfigError], None] = _raise) -> _Document:
    """on_wrong: called with what is wrong with a line."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(str(path), "there is no such users file; `fluxmq user add` makes one") from None
    except OSError as error:
        raise ConfigError(str(path), f"the users file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(str(path), "the users file is not UTF-8 text") from None
    head, *lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    document = _Document(_read_head(path, head), [])
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 2):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            document.lines.append(line.rstrip())
            continue
        try:
            user = _read_user(stripped)
        except ValueError as error:
            on_wrong(ConfigError(str(path), f"line {number}: {error}"))
            continue
        if user.name in seen:
            on_wrong(ConfigError(str(path), f"line {number}: {user.name!r} is already on line {seen[user.name]}"))
            continue
        seen[user.name] = number
        document.lines.append(user)
    return document


def _read_head(path: Path, head: str) -> bytes:
    fields = head.split()
    if len(fields) != 3 or fields[0] != "fluxmq-users":
        raise ConfigError(str(path), "line 1: this is not a users file: it must begin with `fluxmq-users 1` and a key; "
                          "`fluxmq user add` makes such a file")
    if fields[1] != str(FORMAT_VERSION):
        raise ConfigError(str(path), f"line 1: version {fields[1]} of the format is not known, {FORMAT_VERSION} is")
    try:
        key = base64.b64decode(fields[2], validate=True)
    except ValueError:      # also of characters outside of ASCII
        key = b""
    if len(key) != DECOY_KEY_SIZE_BYTES:
        raise ConfigError(str(path), f"line 1: the key is not {DECOY_KEY_SIZE_BYTES} bytes in base64")
    return key


def _read_user(line: str) -> User:
    fields = line.split()
    if len(fields) != 3 and not (len(fields) == 4 and fields[3].startswith(_NAMESPACE)):
        raise ValueError(f"{len(fields)} fields where name, argon2id hash and SCRAM verifier are expected, and perhaps "
                         f"{_NAMESPACE}<name>")
    namespace = ""
    if len(fields) == 4:
        namespace = unquote(fields[3].removeprefix(_NAMESPACE), errors="replace")
        if problem := namespace_problem(namespace):
            raise ValueError(f"the namespace {problem}")
    return User.of(fields[0], fields[1], fields[2], namespace)


def _check_hash(password_hash: str) -> None:
    """Raises ValueError."""
    match = _ARGON2.fullmatch(password_hash)
    if match is None:
        raise ValueError("the password hash is not one of argon2id")
    memory_kib, passes, lanes = int(match[1]), int(match[2]), int(match[3])
    if not (1 <= passes <= ARGON2_PASSES_MAX and 1 <= lanes <= ARGON2_LANES_MAX
            and 8 * lanes <= memory_kib <= ARGON2_MEMORY_KIB_MAX):
        raise ValueError(f"the argon2id parameters m={memory_kib},t={passes},p={lanes} are out of bounds")
    # Four characters of base64 are three bytes; one left over is no byte at all.
    if len(match[4]) % 4 == 1 or len(match[5]) % 4 == 1:
        raise ValueError("the argon2id hash is cut short")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """The real file behind `path`, locked against other editors. The lock is on the directory: the file is replaced."""
    file = Path(os.path.realpath(path))
    try:
        directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(str(path), f"the directory cannot be opened: {error.strerror}") from None
    try:
        # On a file system without locks, the administrator must avoid concurrent edits.
        with contextlib.suppress(OSError):
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(directory)


def _replace(file: Path, text: str) -> None:
    """Write `text` beside `file`, then put it in its place: a reader or a crash sees the old file or the new one."""
    # Not at the top: a broker reads users files, and never writes one.
    import tempfile

    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)  # mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                old = file.stat()  # root edits the file of the broker's account: it must stay readable to the broker
                os.fchown(out.fileno(), old.st_uid, old.st_gid)
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, file)
        directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise ConfigError(str(file), f"the users file cannot be written: {error.strerror}") from None
