"""A throw-away certificate authority for TLS benchmarks and tests: on loopback, for a day."""
from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Certificates", "make_certificates"]


@dataclass(slots=True, frozen=True)
class Certificates:
    """PEM files: the authority that clients trust, the server's certificate and its key."""

    cafile: Path
    certfile: Path
    keyfile: Path


def make_certificates(folder: Path) -> Certificates:
    """Write an authority and a server certificate for 127.0.0.1, ::1 and localhost (ECDSA P-256) into the folder."""
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    end = start + datetime.timedelta(days=1)

    def builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (x509.CertificateBuilder()
                .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
                .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
                .public_key(key.public_key()).serial_number(x509.random_serial_number())
                .not_valid_before(start).not_valid_after(end))

    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = (builder("FluxMQ bench CA", "FluxMQ bench CA", ca_key)
          .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
          .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
          .sign(ca_key, hashes.SHA256()))
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([
        x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1"))])
    certificate = (builder("localhost", "FluxMQ bench CA", key)
                   .add_extension(names, critical=False)
                   .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                   .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
                                  critical=False)
                   .sign(ca_key, hashes.SHA256()))
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    made.cafile.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    made.certfile.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.keyfile.write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    made.keyfile.chmod(0o600)
    return made
