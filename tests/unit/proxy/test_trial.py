"""The certificate for trials: it is for this machine alone, is kept between starts, and is made anew before
it ends; the key of its CA is nowhere."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from rekey.errors import ConfigurationError
from rekey.proxy.tls import Certificate
from rekey.proxy.trial import VALID, TrialFiles, trial_files, trust_lines


def handshake(files: TrialFiles, host: str) -> str:
    """Return "" when a client that trusts the CA takes the certificate for a host, else why it does not."""
    server, client = socket.socketpair()
    trusting = ssl.create_default_context(cafile=str(files.ca))

    def answer() -> None:
        try:
            with Certificate(files.certificate, files.key).context.wrap_socket(server, server_side=True):
                pass
        except (OSError, ssl.SSLError):
            pass

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with trusting.wrap_socket(client, server_hostname=host) as connection:
            return "" if connection.version() else "no TLS"
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        client.close()
        thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_client_that_trusts_the_ca_takes_the_certificate_for_this_machine(
    host: str, tmp_path: Path
) -> None:
    assert handshake(trial_files(tmp_path), host) == ""


def test_the_certificate_is_for_no_other_host(tmp_path: Path) -> None:
    assert "mismatch" in handshake(trial_files(tmp_path), "login.microsoftonline.com")


def test_the_ca_vouches_for_this_machine_alone_and_its_key_is_not_kept(tmp_path: Path) -> None:
    """Who adds it to a store of trusted roots must not open that to others."""
    files = trial_files(tmp_path)
    ca = x509.load_pem_x509_certificate(files.ca.read_bytes())
    permitted = ca.extensions.get_extension_for_class(x509.NameConstraints)
    assert permitted.critical
    assert {str(name.value) for name in permitted.value.permitted_subtrees or ()} == {
        "localhost",
        "127.0.0.1/32",
        "::1/128",
    }
    assert {path.name for path in tmp_path.iterdir()} == {"ca.pem", "certificate.pem", "key.pem"}
    key = files.key.read_bytes()
    assert key.count(b"PRIVATE KEY") == 2
    leaf = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    assert leaf.public_key() != ca.public_key()
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600


def test_it_is_kept_between_starts_and_made_anew_before_it_ends(tmp_path: Path) -> None:
    begun = datetime.now(UTC)
    first = trial_files(tmp_path, begun).ca.read_bytes()
    assert trial_files(tmp_path, begun + VALID - timedelta(days=2)).ca.read_bytes() == first
    assert trial_files(tmp_path, begun + VALID).ca.read_bytes() != first


@pytest.mark.parametrize("name", ["ca.pem", "certificate.pem", "key.pem"])
@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
def test_files_that_do_not_belong_together_are_made_anew(
    name: str, content: bytes | None, tmp_path: Path
) -> None:
    path, former = tmp_path / name, trial_files(tmp_path).ca.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    files = trial_files(tmp_path)
    assert files.ca.read_bytes() != former
    assert handshake(files, "127.0.0.1") == ""


def test_a_key_of_another_certificate_is_made_anew(tmp_path: Path) -> None:
    files, other = trial_files(tmp_path / "ours"), trial_files(tmp_path / "other")
    files.key.write_bytes(other.key.read_bytes())
    assert handshake(trial_files(tmp_path / "ours"), "127.0.0.1") == ""


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        trial_files(tmp_path / "file" / "trial")


def test_each_sdk_is_told_the_file(tmp_path: Path) -> None:
    files = trial_files(tmp_path)
    assert [sdk for sdk, how in trust_lines(files) if str(files.ca) not in how or "{" in how] == []
