"""TLS of the proxy: its certificate, which is reloaded when it changes."""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path

from rekey.errors import ConfigurationError
from rekey.serve.server import Access, Address

_LOG = logging.getLogger("rekey.proxy")
# Seconds between checks of the files, on new connections.
CHECK_S = 10.0


class Certificate:
    """Gives each connection the current certificate. Certificate and key change together: new connections get
    a new context once both files have been read, and the former one until then."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """Read the files. Raises ConfigurationError when they cannot be used."""
        self._access = Access(certificate=certificate, key=key)
        self._files = [file for file in (certificate, key) if file is not None]
        self._seen, self._checked_at = self._stamps(), time.monotonic()
        # For the server to listen with.
        self.context = self._current = self._read()
        self.context.sni_callback = self._choose

    def _read(self) -> ssl.SSLContext:
        context = self._access.tls()
        assert context is not None  # there is a certificate  # noqa: S101
        return context

    def _stamps(self) -> list[tuple[int, int] | None]:
        stamps: list[tuple[int, int] | None] = []
        for file in self._files:
            try:
                status = file.stat()
                stamps.append((status.st_mtime_ns, status.st_ino))
            except OSError:
                stamps.append(None)
        return stamps

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _listening: ssl.SSLContext) -> None:
        """Give a new connection the current context. OpenSSL calls it with and without a server name."""
        if time.monotonic() - self._checked_at >= CHECK_S:
            self._checked_at, stamps = time.monotonic(), self._stamps()
            if stamps != self._seen:
                try:
                    self._current, self._seen = self._read(), stamps
                    _LOG.info("the certificate was read again", extra={"event": "certificate"})
                except ConfigurationError as error:
                    _LOG.warning("%s; the former one is kept", error.what, extra={"event": "certificate"})
        connection.context = self._current


def certificate_for(address: Address, certificate: Path | None, key: Path | None) -> Certificate | None:
    """Return the certificate to listen with; None: http. Raises ConfigurationError when the files cannot be
    used, or when there are none and others can reach the address."""
    if certificate is not None:
        return Certificate(certificate, key)
    if not address.is_loopback:
        raise ConfigurationError(
            f"{address.host} can be reached by others, and a certificate is missing",
            hint="name certificate and key in [proxy.access] of rekey.toml, or listen on 127.0.0.1",
        )
    return None
