"""A throw-away certificate authority for tests: `make_ca(dir)`, then `issue(ca, "name")` as often as needed."""
import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["CertificateAuthority", "issue", "make_ca"]

LIFETIME = datetime.timedelta(days=2)


@dataclass
class CertificateAuthority:
    """folder: where all files go. cert_file: PEM, what the other side is to trust."""

    folder: Path
    cert_file: Path
    key: ec.EllipticCurvePrivateKey
    name: x509.Name
    issued: int = 0


def make_ca(folder: str | Path, cn: str = "throw-away CA") -> CertificateAuthority:
    """A new authority; writes `<cn>.pem` into folder, which is made when missing."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cn)])
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
                          key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
                          decipher_only=False)
    builder = (_builder(name, name, key.public_key())
               .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
               .add_extension(usage, critical=True)
               .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False))
    cert_file = folder / f"{cn.replace(' ', '-')}.pem"
    cert_file.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return CertificateAuthority(folder, cert_file, key, name)


def issue(ca: CertificateAuthority, cn: str | Sequence[str], *, dns: Sequence[str] = (), ip: Sequence[str] = (),
          uri: Sequence[str] = (), email: Sequence[str] = (), key_type: str = "ec", expired: bool = False,
          name: str = "", client: bool = True) -> tuple[str, str]:
    """A certificate for servers and, unless `client` is False, clients alike; returns the paths (certificate, key).

    cn: common name, several, or "" for none. key_type: "ec" or "rsa". name: of the files, by default made of cn and a
    running number; the same name again replaces the files, as a renewal does.
    """
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
    key = ec.generate_private_key(ec.SECP256R1()) if key_type == "ec" else rsa.generate_private_key(65537, 2048)
    common_names = [cn] if isinstance(cn, str) else list(cn)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text) for text in common_names if text])
    others: list[x509.GeneralName] = [
        *map(x509.DNSName, dns), *(x509.IPAddress(ipaddress.ip_address(text)) for text in ip),
        *map(x509.UniformResourceIdentifier, uri), *map(x509.RFC822Name, email)]
    builder = _builder(subject, ca.name, key.public_key(), expired=expired)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, *(
            [ExtendedKeyUsageOID.CLIENT_AUTH] if client else [])]), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key()), critical=False)
    if others:
        builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
    ca.issued += 1
    stem = name or f"{''.join(c if c.isalnum() else '-' for c in common_names[0]) or 'nobody'}-{ca.issued}"
    cert_file, key_file = ca.folder / f"{stem}.crt", ca.folder / f"{stem}.key"
    cert_file.write_bytes(builder.sign(ca.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    key_file.chmod(0o600)
    return str(cert_file), str(key_file)


def _builder(subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
             *, expired: bool = False) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    end = now - datetime.timedelta(hours=1) if expired else now + LIFETIME
    return (x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
            .serial_number(x509.random_serial_number()).not_valid_before(now - LIFETIME).not_valid_after(end))
