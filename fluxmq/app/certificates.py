"""Checks the listeners' certificates before clients do: whether the files belong together, and whether they are in
date."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from fluxmq._core.errors import ConfigError
from fluxmq.model.config import Config
from fluxmq.model.listeners import TlsListener

if TYPE_CHECKING:
    from fluxmq.access.tls import ServerContexts

__all__ = ["Contexts", "check_certificates", "out_of_date", "server_contexts"]

# Of each listener with TLS: its key in the configuration, and the certificate that it sends.
Contexts: TypeAlias = "list[tuple[str, ServerContexts]]"


def server_contexts(path: str, slot: TlsListener) -> ServerContexts:
    """path: the listener's key in the configuration. Raises ConfigError for files that cannot be used."""
    # Imported here, so that a broker without TLS need not load the parser of certificates.
    from fluxmq.access.tls import ServerContexts

    return ServerContexts(slot.cert_file, slot.key_file, ca_file=slot.ca_file, client_auth=slot.client_auth_effective,
                          min_version=slot.min_version, cipher_suites=slot.cipher_suites, path=path)


def out_of_date(listeners: Sequence[tuple[str, ServerContexts]]) -> list[str]:
    """A line for each listener whose certificate is outside of its dates, so that clients refuse it."""
    now = datetime.now(UTC)
    return [f"{path}.cert_file: {problem}" for path, contexts in listeners if (problem := contexts.out_of_date(now))]


def check_certificates(config: Config) -> Iterator[str]:
    """Finds what a start or clients would refuse: files without a certificate, keys of another one, dates."""
    for path, slot in config.listeners():
        if isinstance(slot, TlsListener):
            try:
                contexts = server_contexts(path, slot)
            except ConfigError as error:
                yield from _all_faults(path, slot, error)
            else:
                yield from out_of_date([(path, contexts)])


def _all_faults(path: str, slot: TlsListener, first: ConfigError) -> Iterator[str]:
    """first: the error of a start. Nothing more is reported about the file that it is about."""
    from fluxmq.access.tls import faults_of_files

    yield str(first)
    for fault in faults_of_files(slot.cert_file, slot.key_file, slot.ca_file, path, datetime.now(UTC)):
        if fault.path != first.path:
            yield str(fault)
