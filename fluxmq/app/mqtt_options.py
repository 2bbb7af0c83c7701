"""Options that `fluxmq pub` and `fluxmq sub` share: which brokers, as whom, by which version of MQTT, with TLS, with a
will. `Given.client` makes a client of them.

fluxmq.client and ssl are imported when a client is made, so that `--help` and a mistake in the command line are quick.
"""
from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from fluxmq.model.number_option import Number

if TYPE_CHECKING:
    import ssl

    from fluxmq.client import Client, Will

__all__ = ["Given", "as_bytes", "mqtt_options", "user_properties"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Command = TypeVar("_Command", bound=Callable[..., Any])

BROKER = "localhost:1883"
VERSIONS = {"5": 5, "3.1.1": 4}
TLS_SCHEMES = ("mqtts", "ssl", "tls")
SECONDS_MAX = 0xFFFFFFFF        # of a Four Byte Integer
# Of the client while there is no connection: somebody looks at it.
RECONNECT_MAX_S = 5.0
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def as_bytes(text: str) -> bytes:
    """An argument as the shell gave it, which need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def user_properties(pairs: tuple[str, ...], option: str = "--property") -> list[tuple[str, str]]:
    """NAME=VALUE each."""
    found = []
    for text in pairs:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.UsageError(f"{option} takes NAME=VALUE, not {text!r}")
        found.append((name, value))
    return found


@dataclass(frozen=True, kw_only=True)
class Given:
    """The values of the options."""

    brokers: tuple[str, ...]
    mqtt: str
    client_id: str
    user: str | None
    password: str | None
    password_file: Path | None
    ca_file: Path | None
    cert: Path | None
    key: Path | None
    insecure: bool
    keep_alive: int
    session_expiry: int
    will_topic: str | None
    will_message: str
    will_qos: int
    will_retain: bool
    will_delay: int
    reconnect: bool
    connect_timeout: float
    timeout: float | None
    verbose: bool

    @property
    def version(self) -> int:
        """As Client takes it."""
        return VERSIONS[self.mqtt]

    @property
    def addresses(self) -> list[str]:
        """Of the brokers; with TLS if an option of TLS is given."""
        found = [part.strip() for text in self.brokers for part in text.split(",") if part.strip()] or [BROKER]
        return [_with_tls(address) for address in found] if self._wants_tls else found

    @property
    def _wants_tls(self) -> bool:
        return self.insecure or self.ca_file is not None or self.cert is not None

    def needs_5(self, **options: object) -> None:
        """Raises click.UsageError if one of these was given, and the version is an earlier one."""
        names = ["--" + name.strip("_").replace("_", "-") for name, value in options.items()
                 if value not in (None, False, (), "", 0)]
        if self.version < VERSIONS["5"] and names:
            raise click.UsageError(f"MQTT {self.mqtt} has no {' and no '.join(names)}; leave out --mqtt {self.mqtt}")

    def check(self) -> None:
        """What no single option can say. Raises click.UsageError."""
        self.needs_5(will_delay=self.will_delay)
        if self.key is not None and self.cert is None:
            raise click.UsageError("--key needs --cert, the certificate that it belongs to")
        if self.user is None and (self.password is not None or self.password_file is not None):
            raise click.UsageError("a password needs --user, too")
        if self.session_expiry and not self.client_id:
            raise click.UsageError("--session-expiry needs --client-id, by which the broker knows the session again")
        if self.will_topic is None and (self.will_message or self.will_qos or self.will_retain or self.will_delay):
            raise click.UsageError("a will needs --will-topic")

    def client(self, **more: Any) -> Client:
        """A client, not started. more: as of Client. Raises click.UsageError, UsageError."""
        from fluxmq.client import Backoff, Client
        from fluxmq.client.addresses import Addresses

        addresses = self.addresses
        Addresses(addresses).check()
        if self.session_expiry:     # else that of Client, for a time without a connection
            more["session_expiry_s"] = self.session_expiry
        return Client(
            addresses, client_id=self.client_id, version=self.version, clean_start=not self.session_expiry,
            keep_alive_s=self.keep_alive, username=self.user, password=self._password(), will=self._will(),
            tls=self._tls(), reconnect=Backoff(max_s=RECONNECT_MAX_S) if self.reconnect else None,
            connect_timeout_s=self.connect_timeout, **more)

    def _will(self) -> Will | None:
        from fluxmq.client import Will

        if self.will_topic is None:
            return None
        return Will(self.will_topic, as_bytes(self.will_message), self.will_qos, self.will_retain, self.will_delay)

    def _password(self) -> bytes | str | None:
        """Of the option, the file, the environment, or from the terminal."""
        if self.user is None:
            return None
        if self.password is not None:
            return as_bytes(self.password)
        if self.password_file is not None:
            try:
                return self.password_file.read_bytes().split(b"\n")[0].rstrip(b"\r")
            except OSError as error:
                raise click.UsageError(f"{self.password_file}: {error.strerror or error}") from None
        found = os.environ.get("FLUXMQ_PASSWORD")
        if found is None and sys.stdin.isatty():
            found = click.prompt(f"Password of {self.user}", hide_input=True, default="", show_default=False, err=True)
        return None if found is None else as_bytes(found)

    def _tls(self) -> ssl.SSLContext | None:
        if not self._wants_tls:
            return None
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise click.UsageError(f"--ca-file {self.ca_file} cannot be used: {_reason(error)}") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key)
            except (OSError, ssl.SSLError) as error:
                where = "" if self.key is None else f" with --key {self.key}"
                raise click.UsageError(f"--cert {self.cert}{where} cannot be used: {_reason(error)}") from None
        return context


def _reason(error: OSError) -> str:
    if "PEM lib" in str(error):
        return "it does not hold a certificate and its key in PEM"
    return str(getattr(error, "reason", None) or error.strerror or error).replace("_", " ").lower()


def _with_tls(address: str) -> str:
    scheme, separator, _ = address.rpartition("://")
    if address.startswith("unix:") or (separator and scheme not in TLS_SCHEMES):
        raise click.UsageError(f"{address} is without TLS, and --ca-file, --cert and --insecure are for TLS: write "
                               f"mqtts://HOST:PORT, or leave them out")
    return address if separator else f"mqtts://{address}"


_OPTIONS: list[Callable[[Any], Any]] = [
    click.option("-b", "--broker", "brokers", metavar="ADDRESS,...", multiple=True, envvar="FLUXMQ_BROKER", help=(
        "HOST:PORT, mqtts://HOST:PORT (TLS) or unix:PATH. Several, for the nodes of a cluster: when one goes, the next "
        f"one is used. Default: FLUXMQ_BROKER in the environment, or {BROKER}.")),
    click.option("--mqtt", type=click.Choice(list(VERSIONS)), default="5", show_default=True, help="Version of MQTT."),
    click.option("-i", "--client-id", default="", metavar="ID", help="Default: the broker makes one up."),
    click.option("-u", "--user", envvar="FLUXMQ_USER", metavar="NAME", help=(
        "Log in as this user. The password is that of --password-file, or FLUXMQ_PASSWORD in the environment; on a "
        "terminal it is asked for.")),
    click.option("-P", "--password", metavar="TEXT", help="The password, for all to see who see your processes."),
    click.option("--password-file", type=FILE, metavar="FILE", help="A file whose first line is the password."),
    click.option("--ca-file", type=FILE, metavar="FILE", help=(
        "Certificates of the authorities that may have signed the broker's. Default: those of this system.")),
    click.option("--cert", type=FILE, metavar="FILE", help="A certificate to show to the broker."),
    click.option("--key", type=FILE, metavar="FILE", help="Its key, if that is not in the same file."),
    click.option("--insecure", is_flag=True, help="TLS with whoever answers, whatever the certificate."),
    click.option("--keep-alive", type=click.IntRange(0, 65535), default=60, show_default=True, metavar="SECONDS",
                 help="Ping after this time of silence. 0: never."),
    click.option("--session-expiry", type=click.IntRange(0, SECONDS_MAX), default=0, metavar="SECONDS", help=(
        "Keep the session at the broker for so long after the end, and go on with it the next time. Needs "
        "--client-id. MQTT 3.1.1 keeps it as long as the broker likes.")),
    click.option("--will-topic", metavar="TOPIC", help="Where the broker publishes a will, if this client breaks off."),
    click.option("--will-message", default="", metavar="TEXT", help="The message of the will."),
    click.option("--will-qos", type=click.IntRange(0, 2), default=0, help="Its QoS."),
    click.option("--will-retain", is_flag=True, help="Retain it."),
    click.option("--will-delay", type=click.IntRange(0, SECONDS_MAX), default=0, metavar="SECONDS",
                 help="Publish it only if this client has not come back after this time."),
    click.option("--reconnect/--no-reconnect", default=True, help=(
        "Connect again when the connection is lost (the default), or end with status 6.")),
    click.option("--connect-timeout", type=Number(0, min_open=True), default=10.0, show_default=True,
                 metavar="SECONDS", help="How long a broker may take to accept the connection."),
    click.option("--timeout", type=Number(0, min_open=True), metavar="SECONDS",
                 help="End after this time, with status 7 if not everything is done."),
    click.option("--verbose", is_flag=True, help="Say on standard error what happens."),
]


def mqtt_options(function: Callable[Concatenate[Given, _P], _T]) -> Callable[..., _T]:
    """Adds the options to a command, and passes Given as first argument."""
    names = [field.name for field in fields(Given)]

    def command(*arguments: Any, **options: Any) -> _T:
        given = Given(**{name: options.pop(name) for name in names})
        given.check()
        return function(given, *arguments, **options)

    update_wrapper(command, function)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
