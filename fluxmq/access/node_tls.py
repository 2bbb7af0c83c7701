"""Whether a node's certificate will do for mutual TLS between nodes: found out before another node does.

The certificate meets itself: a handshake in memory, in which it is both the server's and the client's. So what fails
here (a key of another certificate, a wrong authority, a name that others dial and it does not have, a usage that lacks
server or client, dates) would fail between two nodes, where each side sees half of the reason.
"""
from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from datetime import datetime

from fluxmq._core.errors import ConfigError
from fluxmq.access.tls import ServerContexts, faults_of_files

__all__ = ["faults_of_node"]


def faults_of_node(cert_file: str, key_file: str, ca_file: str, hosts: Sequence[str], path: str,
                   now: datetime) -> Iterator[ConfigError]:
    """Every fault that can be found by itself. hosts: names and IP addresses by which others dial this node. path: the
    section of the configuration. now: with a time zone."""
    faults = faults_of_files(cert_file, key_file, ca_file, path, now)
    yield from faults
    if faults:
        return
    try:
        server = ServerContexts(cert_file, key_file, ca_file=ca_file, client_auth="require", path=path).current
    except ConfigError as error:
        yield error
        return
    client = ssl.create_default_context(cafile=ca_file)
    client.hostname_checks_common_name = False  # gRPC and Go do not look at it either
    client.load_cert_chain(cert_file, key_file)
    for host in hosts:
        if reason := _refused(server, client, host):
            yield ConfigError(f"{path}.cert_file", f"{cert_file} would be refused by the other nodes: {reason}")
            if "valid for" not in reason:
                return      # for every other host it is the same


def _refused(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> str:
    """Why the client or the server ends the handshake; "" if neither does."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (client.wrap_bio(to_client, to_server, server_hostname=host),
             server.wrap_bio(to_server, to_client, server_side=True))
    done = [False, False]
    # Each round moves the handshake on by one flight; there are at most three, and the session tickets.
    for _ in range(8):
        for at, side in enumerate(sides):
            if not done[at]:
                try:
                    side.do_handshake()
                    done[at] = True
                except ssl.SSLWantReadError:
                    continue
                except ssl.SSLCertVerificationError as error:
                    return f"as {('server', 'client')[at]}: {error.verify_message.rstrip('.')}"
                except ssl.SSLError as error:
                    return (error.reason or str(error)).lower().replace("_", " ")
    return "" if all(done) else "the handshake does not end"
