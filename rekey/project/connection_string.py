"""What a connection string of a storage account says of its table service. No error repeats any of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from rekey.project.refusals import refusal

_AZURITE = "http://127.0.0.1:10002/devstoreaccount1"
_SUFFIX = "core.windows.net"


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """The table service that a connection string names."""

    endpoint: str
    # The shared key in base64; "": that of every Azurite.
    key: str = field(default="", repr=False)

    @classmethod
    def read(cls, text: str, variable: str) -> ConnectionString | None:
        """Return what a text says; None: it is no connection string. Raises ConfigurationError, which names
        the environment variable that holds it, for one without a shared key."""
        pairs = (part.partition("=") for part in text.strip().split(";") if part.strip())
        parts = {name.strip().lower(): value.strip() for name, equals, value in pairs if equals}
        if parts.get("usedevelopmentstorage", "").lower() == "true":
            return cls(_AZURITE)
        if not {"accountname", "accountkey", "tableendpoint", "sharedaccesssignature"} & parts.keys():
            return None
        if not parts.get("accountkey"):
            raise refusal("no-key-in-connection-string", variable=variable)
        endpoint = parts.get("tableendpoint", "").rstrip("/")
        if not endpoint:
            if not parts.get("accountname"):
                raise refusal("no-account-in-connection-string", variable=variable)
            scheme = parts.get("defaultendpointsprotocol") or "https"
            endpoint = f"{scheme}://{parts['accountname']}.table.{parts.get('endpointsuffix') or _SUFFIX}"
        return cls(endpoint, parts["accountkey"])
