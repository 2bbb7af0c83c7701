"""TLS for the listeners: contexts built from the configuration, exchanged when certificates are renewed.

A ServerContexts belongs to one listener. A handshake takes `current` when it begins; `reload` builds a new context from
the files and only then exchanges it, so connections that stand keep theirs and a failed renewal changes nothing. Each
context has its own ticket keys: a session begun under the old certificates is not resumed under the new ones, which is
what makes a changed ca_file hold for clients that come back.

Only a broker that has such a listener imports this: `cryptography` takes as long as a tenth of a start.

`request` and `require` differ in what a client without a certificate meets; one that gives a certificate must give one
that ca_file vouches for, either way.
"""
import difflib
import errno
import os
import ssl
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from fluxmq._core.errors import ConfigError

__all__ = ["CLIENT_AUTH", "MIN_VERSIONS", "ServerContexts", "faults_of_files"]

CLIENT_AUTH = {"none": ssl.CERT_NONE, "request": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}
MIN_VERSIONS = {"tls1.2": ssl.TLSVersion.TLSv1_2, "tls1.3": ssl.TLSVersion.TLSv1_3}

# IANA's names of the suites that TLS 1.2 should still be used with (forward secret, authenticated encryption), because
# configurations are carried over from brokers that use these names. OpenSSL's own names are taken as they are.
_OPENSSL_NAMES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256": "DHE-RSA-AES128-GCM-SHA256",
    "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384": "DHE-RSA-AES256-GCM-SHA384",
    "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "DHE-RSA-CHACHA20-POLY1305",
}


class ServerContexts:
    """Machine. The TLS context of one listener, and its renewal.

    cert_file: PEM, the server's certificate and the intermediate ones after it. key_file: PEM, not encrypted.
    ca_file: PEM, who vouches for clients. client_auth: a key of CLIENT_AUTH; "" is "require" with a ca_file and "none"
    without. min_version: a key of MIN_VERSIONS, "" is tls1.2. cipher_suites: for TLS 1.2, OpenSSL's or IANA's names;
    empty is OpenSSL's choice. path: the listener's key in the configuration, for the errors.

    Raises ConfigError(dotted key, text) when a context cannot be made of this.
    """

    def __init__(self, cert_file: str, key_file: str, *, ca_file: str = "", client_auth: str = "",
                 min_version: str = "", cipher_suites: Sequence[str] = (), path: str = "tls") -> None:
        self._cert_file = cert_file
        self._key_file = key_file
        self._ca_file = ca_file
        self._client_auth = client_auth or ("require" if ca_file else "none")
        self._min_version = min_version or "tls1.2"
        self._path = path
        self._check_words()
        self._ciphers = self._openssl_ciphers(cipher_suites)
        self._certificates: list[x509.Certificate] = []
        self._current = self._build()

    @property
    def current(self) -> ssl.SSLContext:
        """The context for a handshake that begins now; ask for it at every accept."""
        return self._current

    def reload(self) -> str:
        """Read the files again. "" when handshakes from now on use them; else why the old ones stay in force."""
        try:
            self._current = self._build()
        except ConfigError as error:
            return f"{error}; the certificates read before stay in force"
        return ""

    def out_of_date(self, now: datetime) -> str:
        """Why clients refuse a certificate of cert_file, as read last, at the time `now` (with a time zone); "" when
        they do not.

        OpenSSL serves an expired certificate without a warning."""
        return _out_of_date(self._cert_file, self._certificates, now)

    def _fail(self, key: str, text: str) -> ConfigError:
        return _fault(self._path, key, text)

    def _check_words(self) -> None:
        if self._client_auth not in CLIENT_AUTH:
            raise self._fail("client_auth", f"{self._client_auth!r} is not known; {', '.join(CLIENT_AUTH)} are")
        if self._min_version in ("tls1.0", "tls1.1"):
            raise self._fail("min_version", f"{self._min_version} is broken and not offered (RFC 8996); "
                             f"{' and '.join(MIN_VERSIONS)} are")
        if self._min_version not in MIN_VERSIONS:
            raise self._fail("min_version", f"{self._min_version!r} is not known; {' and '.join(MIN_VERSIONS)} are")
        if self._client_auth != "none" and not self._ca_file:
            raise self._fail("ca_file", f"client_auth {self._client_auth} needs it: name the authorities that "
                                        "sign the clients' certificates")
        if self._client_auth == "none" and self._ca_file:
            raise self._fail("client_auth", "none asks clients for no certificate, so ca_file would do nothing; "
                             "say request or require, or leave ca_file out")

    def _openssl_ciphers(self, names: Sequence[str]) -> str:
        """The names as OpenSSL takes them, joined; "" for its own choice."""
        if not names:
            return ""
        if self._min_version == "tls1.3":
            raise self._fail("cipher_suites", "these are for TLS 1.2, which min_version tls1.3 excludes")
        # Asked for by its name OpenSSL would even give a suite that encrypts nothing.
        usable = _tls12_ciphers("HIGH:!aNULL:!eNULL:!PSK:!SRP:!3DES")
        known = usable | _tls12_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
        ciphers = []
        for index, name in enumerate(names):
            key = f"cipher_suites[{index}]"
            cipher = _OPENSSL_NAMES.get(name, name)
            if name.startswith("TLS_") and "_WITH_" not in name:
                raise self._fail(key, f"{name} is a suite of TLS 1.3; those are all secure, always on and not chosen "
                                 "here")
            if cipher not in known:
                near = difflib.get_close_matches(name, [*usable, *_OPENSSL_NAMES], 1)
                raise self._fail(key, f"{name!r} is not known to {ssl.OPENSSL_VERSION}"
                                 + (f"; did you mean {near[0]}?" if near else ""))
            if cipher not in usable:
                raise self._fail(key, f"{name} is too weak, or needs keys that are not certificates")
            ciphers.append(cipher)
        return ":".join(ciphers)

    def _build(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = MIN_VERSIONS[self._min_version]
        # A client must not be able to make us compute handshake after handshake on one connection. TLS 1.2 only.
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_COMPRESSION
        # MQTT connections are long and come back one at a time: one ticket is enough, OpenSSL's two are bytes to all.
        context.num_tickets = 1
        if self._ciphers:
            context.set_ciphers(self._ciphers)
        certificates = self._load_certificate(context)
        if self._ca_file:
            _load_ca(context, self._path, self._ca_file)
        context.verify_mode = CLIENT_AUTH[self._client_auth]
        self._certificates = certificates
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> list[x509.Certificate]:
        pem = _read_pem(self._path, "cert_file", self._cert_file, "CERTIFICATE-----")
        _read_key(self._path, self._key_file)
        try:
            # The password is a stand-in: without one OpenSSL would ask on the terminal.
            context.load_cert_chain(self._cert_file, self._key_file, password="-")
        except ssl.SSLError as error:
            # The last is OpenSSL's error for a key of another algorithm than the certificate's.
            if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
                raise self._fail("key_file", f"{self._key_file} is not the key of the certificate in "
                                 f"{self._cert_file}") from None
            if error.reason and ("KEY_TOO_SMALL" in error.reason or "MD_TOO_WEAK" in error.reason):
                raise self._fail("cert_file", f"{self._cert_file} is too weak: {_reason(error)}") from None
            raise self._fail("cert_file", f"{self._cert_file} and {self._key_file} cannot be used: "
                             f"{_reason(error)}") from None
        except OSError as error:
            raise self._fail("cert_file", f"{self._cert_file} cannot be read: {_reason(error)}") from None
        try:
            return x509.load_pem_x509_certificates(pem)
        except ValueError:
            return []  # OpenSSL accepts files that this parser does not


def faults_of_files(cert_file: str, key_file: str, ca_file: str, path: str, now: datetime) -> list[ConfigError]:
    """What is wrong with each of a listener's files by itself. A ServerContexts says one fault, the first."""
    faults: list[ConfigError] = []

    def certificate() -> None:
        pem = _read_pem(path, "cert_file", cert_file, "CERTIFICATE-----")
        try:
            certificates = x509.load_pem_x509_certificates(pem)
        except ValueError as error:
            raise _fault(path, "cert_file", f"{cert_file} cannot be used: {error}") from None
        if why := _out_of_date(cert_file, certificates, now):
            raise _fault(path, "cert_file", why)

    def key() -> None:
        try:
            serialization.load_pem_private_key(_read_key(path, key_file), None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise _fault(path, "key_file", f"{key_file} cannot be used: {_first_sentence(error)}") from None

    def authorities() -> None:
        if ca_file:
            _load_ca(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), path, ca_file)

    for look in (certificate, key, authorities):
        try:
            look()
        except ConfigError as error:
            faults.append(error)
    return faults


def _fault(path: str, key: str, text: str) -> ConfigError:
    return ConfigError(f"{path}.{key}" if path else key, text)


def _read_pem(path: str, key: str, name: str, mark: str) -> bytes:
    """The file's content; OpenSSL itself says neither which file it means nor what is missing in it."""
    if not name:
        raise _fault(path, key, "a TLS listener needs this file")
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        hint = f" (as user {os.geteuid()})" if error.errno == errno.EACCES else ""
        raise _fault(path, key, f"{name} cannot be read: {error.strerror}{hint}") from None
    if mark.encode() not in data:
        raise _fault(path, key, f"{name} contains no PEM block that ends in {mark.rstrip('-')}")
    return data


def _read_key(path: str, name: str) -> bytes:
    data = _read_pem(path, "key_file", name, "PRIVATE KEY-----")
    if b"ENCRYPTED" in data:
        raise _fault(path, "key_file", f"{name} is encrypted, and the broker cannot ask for the pass phrase; "
                     "`openssl pkey -in FILE -out PLAIN` decrypts it")
    return data


def _load_ca(context: ssl.SSLContext, path: str, name: str) -> None:
    _read_pem(path, "ca_file", name, "CERTIFICATE-----")
    try:
        context.load_verify_locations(cafile=name)
    except (OSError, ssl.SSLError) as error:
        raise _fault(path, "ca_file", f"{name} cannot be used: {_reason(error)}") from None


def _out_of_date(name: str, certificates: Sequence[x509.Certificate], now: datetime) -> str:
    for certificate in certificates:
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        whose = f"the certificate of {certificate.subject.rfc4514_string() or 'nobody'} in {name}"
        if now >= end:
            return f"{whose} has expired ({end:%Y-%m-%d %H:%M} UTC): clients refuse it; renew it"
        if now < begin:
            return (f"{whose} is not valid before {begin:%Y-%m-%d %H:%M} UTC: clients refuse it; set the clock, or "
                    f"get another")
    return ""


def _tls12_ciphers(spec: str) -> set[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.set_ciphers(spec)
    except ssl.SSLError:
        return set()
    # Suites of TLS 1.3 are in every list, whatever was set.
    return {cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"}


def _first_sentence(error: Exception) -> str:
    return str(error).partition(". ")[0]


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return error.strerror or str(error)
