"""Who may do what through the proxy, as it is configured. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rekey.project.config import Proxy
from rekey.project.entra import Allowed, Rights, View

_RIGHTS = {
    Rights.READ: "read rows, list tables",
    Rights.WRITE: "read and write rows; list, create and delete tables",
}
_KINDS = {"object_id": "object", "app_id": "application", "group": "group"}


@dataclass(frozen=True, slots=True)
class Caller:
    """Those who show one credential."""

    who: str
    views: View
    rights: str
    # What a name means to them, where that is not the table of this name.
    aliases: dict[str, str]


def callers(proxy: Proxy) -> Iterator[Caller]:
    """Yield who may use the proxy, in the order in which entries count."""
    access = proxy.access

    def aliases(name: str) -> dict[str, str]:
        return dict(proxy.own_views.get(name, proxy.views))

    for name in access.keys:
        yield Caller(f"key {name}", View.BOTH, "everything", aliases(name))
        signature = "what the signature says"
        if aliases(name):
            signature += "; with a key range not under an alias"
        yield Caller(f"signatures made with the key {name}", View.BOTH, signature, aliases(name))
    for entry in access.entra.allow if access.entra is not None else ():
        yield Caller(_named(entry), entry.view, _RIGHTS[entry.rights], aliases(entry.name))
    if access.bearer_tokens:
        rights = "what the account lets the token do, but no write to a table of a migration"
        yield Caller("any token of Entra ID", View.BOTH, rights, aliases(""))


def _named(entry: Allowed) -> str:
    return f"{_KINDS[entry.kind]} {entry.id}" + (f" ({entry.name})" if entry.name else "")


def callers_as_json(proxy: Proxy) -> dict[str, Any]:
    """Return who may do what as a document."""
    entra = proxy.access.entra
    tenant = {} if entra is None else {"tenant": entra.tenant, "audience": entra.audience}
    return {**tenant, "callers": [asdict(caller) for caller in callers(proxy)]}
