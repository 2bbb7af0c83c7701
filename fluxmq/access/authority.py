"""Authentication and permissions of clients: implements `fluxmq.engine.ports.access`.

How a CONNECT is judged; the first line that applies decides:

    certificate with a user name, on a listener that takes it    that name; a different one in CONNECT is refused, 0x87
    certificate without one, on such a listener                  refused, 0x87
    no users file, anonymous allowed                             anonymous, whatever name and password are sent
    neither user name nor password, anonymous allowed            anonymous
    no users file, or no user name and no password               refused, 0x87
    user name and password of the users file                     that name
    anything else                                                refused, 0x86

With a users file anonymous clients are allowed only if that is said; without one, unless the contrary is said. What is
said of the file holds for the users of a cluster, too; until those are known nobody is let in.
"""
import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fluxmq._core.errors import AuthError, ConfigError, UsageError
from fluxmq.access.acl import Acl
from fluxmq.access.certificate_names import peer_username
from fluxmq.access.passwords import Passwords
from fluxmq.access.scram import MECHANISM, ScramServer, ScramVerifier
from fluxmq.access.users import DECOY_KEY_SIZE_BYTES, Users
from fluxmq.engine.ports import access as ports_access

__all__ = ["Authority"]

BAD_USER_NAME_OR_PASSWORD = 0x86
NOT_AUTHORIZED = 0x87
UNAVAILABLE = 0x88
NONCE_SIZE_BYTES = 18
# Time passes between needs_wait() and authenticate_now(); a cached check that is valid for the first is for the second.
CACHE_SLACK_S = 1.0


class Authority:
    """Machine. Users, passwords and access list of one broker.

    users_file, acl_file: "" or None when there is none. cluster_users, cluster_permissions: instead of a file; learn()
    tells them.
    allow_anonymous: None is true without users and false with them. password_workers, password_waiting_max: see
    Passwords. clock: seconds, monotonic.

    Raises ConfigError when a file cannot be used. Neither users nor anonymity is no error here: client certificates may
    be all that is wanted.
    """

    def __init__(self, users_file: str | None = None, acl_file: str | None = None,
                 allow_anonymous: bool | None = None, *, cluster_users: bool = False,
                 cluster_permissions: bool = False, password_workers: int | None = None,
                 password_waiting_max: int | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._users_file = users_file or None
        self._acl_file = acl_file or None
        self._has_users = cluster_users or self._users_file is not None
        self.waits = cluster_users or cluster_permissions  # for what the cluster says
        self._anonymous = not self._has_users if allow_anonymous is None else allow_anonymous
        self._users = Users({}, secrets.token_bytes(DECOY_KEY_SIZE_BYTES))
        self._acl: Acl | None = Acl(()) if cluster_permissions else None
        self._users, self._acl = self._read()
        self._generation = 1
        self._removed: frozenset[str] = frozenset()
        # No thread is started before the first password is checked.
        self._passwords = Passwords(
            self._users, workers=password_workers, waiting_max=password_waiting_max, clock=clock)

    @property
    def name(self) -> str:
        return "access list"

    @property
    def asks(self) -> bool:
        return False

    @property
    def open_publish(self) -> bool:
        return self._acl is None

    @property
    def open_subscribe(self) -> bool:
        return self._acl is None

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def removed(self) -> frozenset[str]:
        return self._removed

    @property
    def methods(self) -> tuple[str, ...]:
        return (MECHANISM,) if self._has_users else ()

    def needs_wait(self, username: str | None, password: bytes | None,
                   certificate: Mapping[str, Any] | None = None, username_from: str = "") -> bool:
        if self.waits or not self._has_users or username is None or password is None:
            return False
        if certificate and username_from:
            return False
        return not self._passwords.remembers(username, password)

    def authenticate_now(self, client_id: str, username: str | None, password: bytes | None,
                         certificate: Mapping[str, Any] | None = None, username_from: str = "") -> str | None:
        identity, undecided = self._without_password(username, password, certificate, username_from)
        if undecided is None or self._passwords.remembers(*undecided, slack_s=CACHE_SLACK_S):
            return identity
        raise UsageError("this authentication takes time: ask needs_wait() first")

    async def authenticate(self, client_id: str, username: str | None, password: bytes | None,
                           certificate: Mapping[str, Any] | None = None, username_from: str = "",
                           origin: bytes = b"") -> str | None:
        identity, undecided = self._without_password(username, password, certificate, username_from)
        if undecided is None or await self._passwords.verify(*undecided, origin):
            return identity
        raise AuthError(BAD_USER_NAME_OR_PASSWORD, "user name or password is wrong")

    def begin_exchange(self, method: str) -> ScramServer | None:
        if method not in self.methods:
            return None
        users = self._users
        return ScramServer(self._scram, secrets.token_urlsafe(NONCE_SIZE_BYTES),
                           decoy_key=users.decoy_key, decoy_iterations=users.decoy_iterations)

    def finish_exchange(self, exchange: ports_access.Exchange, username: str | None = None,
                        certificate: Mapping[str, Any] | None = None, username_from: str = "") -> str:
        if exchange.username is None:
            raise UsageError("this exchange has not succeeded")
        self._known()
        identity = exchange.username
        if certificate and username_from and peer_username(certificate, username_from) != identity:
            raise AuthError(NOT_AUTHORIZED, "the client certificate names another user than was authenticated")
        if username is not None and username != identity:
            raise AuthError(NOT_AUTHORIZED, "the user name is another than was authenticated")
        return identity

    def has_user(self, name: str) -> bool:
        return name in self._users

    def namespace_of(self, identity: str | None) -> str:
        return self._users.namespace(identity) if identity is not None else ""

    def may_publish(self, identity: str | None, client_id: str, topic: str, namespace: str = "/") -> bool | None:
        return self._acl is None or self._acl.may_publish(identity, client_id, topic, namespace)

    def may_subscribe(self, identity: str | None, client_id: str, filter_: str, namespace: str = "/") -> bool | None:
        return self._acl is None or self._acl.may_subscribe(identity, client_id, filter_, namespace)

    async def decide_publish(self, identity: str | None, client_id: str, topic: str, namespace: str = "/") -> bool:
        return bool(self.may_publish(identity, client_id, topic, namespace))

    async def decide_subscribe(self, identity: str | None, client_id: str, filter_: str, namespace: str = "/") -> bool:
        return bool(self.may_subscribe(identity, client_id, filter_, namespace))

    def reload(self) -> list[str]:
        """Read both files again. Empty when they hold from now on, else what is wrong: then both stay as they were.

        Connections that stand are not judged again as to their passwords; what they may do is asked anew, and `removed`
        names the users that are gone.
        """
        problems: list[str] = []
        try:
            users, acl = self._read()
        except ConfigError as error:
            problems.append(f"{error}; users and access list stay as they were")
            self._removed = frozenset()
            return problems
        self._replace(users, acl)
        return problems

    def learn(self, users: Users | None, acl: Acl | None) -> None:
        """What the cluster has from now on, instead of files; None: as it was. Connections that stand are as after
        reload()."""
        self.waits = False
        self._replace(self._users if users is None else users, self._acl if acl is None else acl)

    def _replace(self, users: Users, acl: Acl | None) -> None:
        self._removed = frozenset(self._users.names()) - frozenset(users.names())
        self._users, self._acl = users, acl
        self._passwords.replace(users)
        self._generation += 1

    def _known(self) -> None:
        """Raises AuthError."""
        if self.waits:
            raise AuthError(UNAVAILABLE, "this node does not know the users of its cluster yet")

    def close(self) -> None:
        """Stop checking passwords; who waits for one gets AuthError(0x88)."""
        self._passwords.close()

    def _read(self) -> tuple[Users, Acl | None]:
        users = Users.load(self._users_file) if self._users_file else self._users
        if not self._acl_file:
            return users, self._acl
        # It is YAML, which a broker without one does not read.
        from fluxmq.access.acl_file import load_acl

        return users, load_acl(self._acl_file)

    def _scram(self, name: str) -> ScramVerifier | None:
        return self._users.scram(name)

    def _without_password(self, username: str | None, password: bytes | None, certificate: Mapping[str, Any] | None,
                          username_from: str) -> tuple[str | None, tuple[str, bytes] | None]:
        """The table on top: (identity, name and password if they are left to check). Raises AuthError."""
        self._known()
        if certificate and username_from:
            name = peer_username(certificate, username_from)
            if name is None:
                raise AuthError(NOT_AUTHORIZED, f"the client certificate contains no user name ({username_from})")
            if username is not None and username != name:
                raise AuthError(NOT_AUTHORIZED, "the user name is not the one of the client certificate")
            return name, None
        if self._anonymous and (not self._has_users or (username is None and password is None)):
            return None, None
        if not self._has_users or (username is None and password is None):
            raise AuthError(NOT_AUTHORIZED, "a user name is needed here")
        if username is None or password is None:
            raise AuthError(BAD_USER_NAME_OR_PASSWORD, "user name and password are needed here")
        return username, (username, password)


if TYPE_CHECKING:
    # mypy holds the class against the port here, where the difference is named.
    _port: type[ports_access.Authority] = Authority
