"""TLS of the proxy: its certificate, which is read again when it changes.

Rules kept here:

* Where others reach the address, there is TLS, or nothing is listened to.
* Certificate and key change together, or not at all: both are read into a new context, which new connections
  are given once it is whole. Until then, and when it cannot be used, they are given the former one.
* Files are looked at when a connection is made, at most every ten seconds.
"""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path

from rekey.errors import ConfigurationError
from rekey.serve.server import Access, Address

_LOG = logging.getLogger("rekey.proxy")
# Seconds between two looks at the files.
LOOK_S = 10.0


class Certificate:
    """Gives each connection the certificate of its time."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """Read the files. Raises ConfigurationError when they cannot be used."""
        self._access = Access(certificate=certificate, key=key)
        self._files = [file for file in (certificate, key) if file is not None]
        self._seen, self._looked = self._stamps(), time.monotonic()
        # What the server listens with.
        self.context = self._current = self._read()
        self.context.sni_callback = self._choose

    def _read(self) -> ssl.SSLContext:
        context = self._access.tls()
        assert context is not None  # there is a certificate  # noqa: S101
        return context

    def _stamps(self) -> list[tuple[int, int] | None]:
        """Return what changes with the files; None for one that is gone."""
        found: list[tuple[int, int] | None] = []
        for file in self._files:
            try:
                said = file.stat()
                found.append((said.st_mtime_ns, said.st_ino))
            except OSError:
                found.append(None)
        return found

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _listening: ssl.SSLContext) -> None:
        """Give a new connection the current context. OpenSSL asks with and without a server name."""
        if time.monotonic() - self._looked >= LOOK_S:
            self._looked, stamps = time.monotonic(), self._stamps()
            if stamps != self._seen:
                try:
                    self._current, self._seen = self._read(), stamps
                    _LOG.info("the certificate was read again", extra={"event": "certificate"})
                except ConfigurationError as error:
                    _LOG.warning("%s; the former one is kept", error.what, extra={"event": "certificate"})
        connection.context = self._current


def certificate_for(address: Address, certificate: Path | None, key: Path | None) -> Certificate | None:
    """Return the certificate to listen with; None: http.

    Raises:
        ConfigurationError: the files cannot be used, or there are none and others reach the address.
    """
    if certificate is not None:
        return Certificate(certificate, key)
    if not address.is_loopback:
        raise ConfigurationError(
            f"{address.host} can be reached by others, and a certificate is missing",
            hint="name certificate and key in [proxy.access] of rekey.toml, or listen on 127.0.0.1",
        )
    return None
