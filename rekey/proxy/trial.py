"""A certificate for trials on this machine, and how SDKs trust it: they send no token over http."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rekey.errors import ConfigurationError, reason_of
from rekey.project.privatefiles import write_whole

VALID = timedelta(days=30)
# A certificate that ends sooner is replaced.
_LEAST = timedelta(days=1)
_MODE_OF_ALL = 0o644
_LOOPBACK = (IPv4Network("127.0.0.1/32"), IPv6Network("::1/128"))
# How applications trust a CA that is in a file.
TRUSTS: Mapping[str, str] = {
    "Python": 'connection_verify="{ca}" for the client, or REQUESTS_CA_BUNDLE={ca} (async: SSL_CERT_FILE)',
    "Azure CLI": "REQUESTS_CA_BUNDLE={ca}",
    ".NET on Linux": "SSL_CERT_FILE={ca}; on Windows and macOS import it into the user's root store",
    "Java": "keytool -importcert -noprompt -alias rekey -file {ca} -keystore trust.p12 -storepass changeit;"
    " then java -Djavax.net.ssl.trustStore=trust.p12 -Djavax.net.ssl.trustStorePassword=changeit",
    "Node.js": "NODE_EXTRA_CA_CERTS={ca}",
    "Go": "SSL_CERT_FILE={ca} on Linux",
}


@dataclass(frozen=True, slots=True)
class TrialFiles:
    """The PEM files of a trial."""

    # What applications must trust.
    ca: Path
    # To listen with.
    certificate: Path
    key: Path


def trial_files(folder: Path, now: datetime | None = None) -> TrialFiles:
    """Return the files of a trial in a folder, made when there are none or they are about to end. The CA can
    vouch for this machine alone, and its key is not kept. Raises ConfigurationError when they cannot be
    written."""
    now = now or datetime.now(UTC)
    files = TrialFiles(folder / "ca.pem", folder / "certificate.pem", folder / "key.pem")
    if _is_usable(files, now):
        return files
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ca, certificate, key = _issued(now)
        # The key first: a certificate whose key is missing would count as usable.
        write_whole(files.key, key)
        write_whole(files.certificate, certificate + ca)
        write_whole(files.ca, ca)
        files.ca.chmod(_MODE_OF_ALL)
    except OSError as error:
        raise ConfigurationError(
            f"the certificate for trials cannot be written to {folder} ({reason_of(error)})",
            hint="make the folder writable, or name certificate and key in [proxy.access]",
        ) from None
    return files


def trust_lines(files: TrialFiles) -> list[tuple[str, str]]:
    """Return how the applications of each SDK are told to trust the CA."""
    return [(sdk, how.format(ca=files.ca)) for sdk, how in TRUSTS.items()]


def _is_usable(files: TrialFiles, now: datetime) -> bool:
    try:
        [certificate, ca] = x509.load_pem_x509_certificates(files.certificate.read_bytes())
        key = load_pem_private_key(files.key.read_bytes(), None)
        is_whole = files.ca.read_bytes() == ca.public_bytes(Encoding.PEM)
        is_whole = is_whole and key.public_key() == certificate.public_key()
        return is_whole and certificate.not_valid_after_utc >= now + _LEAST
    except (OSError, ValueError):
        return False


def _issued(now: datetime) -> tuple[bytes, bytes, bytes]:
    """Return a new CA, a certificate by it, and the certificate's key, in PEM."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer, subject = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("rekey trial CA", "rekey")
    )
    names = [x509.DNSName("localhost"), *(x509.IPAddress(network[0]) for network in _LOOPBACK)]
    permitted = [x509.DNSName("localhost"), *(x509.IPAddress(network) for network in _LOOPBACK)]

    def begun(name: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .issuer_name(issuer)
            .subject_name(name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + VALID)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
            )
        )

    ca = (
        begun(issuer, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints(permitted, None), critical=True)
        .sign(ca_key, SHA256())
    )
    certificate = (
        begun(subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(ca_key, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return ca.public_bytes(Encoding.PEM), certificate.public_bytes(Encoding.PEM), private


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
