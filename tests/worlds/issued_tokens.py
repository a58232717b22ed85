"""What an application needs to come to a proxy with a token: an issuer on this machine, a certificate for
trials, and the settings of a proxy that takes both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rekey.proxy.trial import trial_files
from tests.fakes.issuer import TENANT, USER, Issuer, entra_of, listening_apart, now, user_claims

_SETTINGS = """
[proxy.access]
certificate = "{certificate}"
key = "{key}"
[proxy.access.entra]
tenant = "{tenant}"
authority = "{authority}"
allow = [{{ object_id = "{user}", view = "both", rights = "write" }}]
"""


@dataclass(frozen=True)
class IssuedToken:
    """A token that a proxy with these further settings takes, and the file of the CA that applications must
    trust."""

    token: str
    ca: Path
    settings: str


@contextmanager
def issued_token(folder: Path) -> Iterator[IssuedToken]:
    """Serve the issuer's keys; files of the certificate are kept in `folder`."""
    issuer, files = Issuer(), trial_files(folder)
    with listening_apart(issuer) as authority:
        settings = _SETTINGS.format(
            certificate=files.certificate, key=files.key, tenant=TENANT, authority=authority, user=USER
        )
        token = issuer.token(user_claims(entra_of(authority=authority), now()))
        yield IssuedToken(token, files.ca, settings)
