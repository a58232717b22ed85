"""`[proxy.access.entra]`: the tenant whose access tokens the proxy verifies, and what its principals may do.
Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from rekey.project.sections import Seconds, Section

AUTHORITY = "https://login.microsoftonline.com"
AUDIENCE = "https://storage.azure.com"
# Who issues tokens of version 1.0, by the authority, as its metadata says. Any other authority, as that of a
# test, issues them itself.
_ISSUERS_V1 = {
    AUTHORITY: "https://sts.windows.net",
    "https://login.microsoftonline.us": "https://sts.windows.net",
    "https://login.partner.microsoftonline.cn": "https://sts.chinacloudapi.cn",
    "https://login.chinacloudapi.cn": "https://sts.chinacloudapi.cn",
}
_GUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_LOOPBACK = frozenset({"127.0.0.1", "::1"})
_MAX_AGE_S = 24 * 3600.0


class PrincipalKind(StrEnum):
    """What an entry of `allow` names, as its key is written."""

    # A user, a service principal or a managed identity.
    OBJECT = "object_id"
    # An application that acts for itself.
    APPLICATION = "app_id"
    # A group that the token lists.
    GROUP = "group"


class View(StrEnum):
    """The tables of a migration that a caller may use."""

    OLD = "old"
    NEW = "new"
    BOTH = "both"


class Rights(StrEnum):
    """What a caller may do with rows and tables."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Allowed:
    """An entry of `allow`."""

    kind: PrincipalKind
    # In lower case.
    id: str
    view: View
    rights: Rights
    # Of its `[proxy.views.NAME]`; "" for `[proxy.views]`.
    name: str = ""


@dataclass(frozen=True, slots=True)
class Entra:
    """Whose tokens are verified here, and who may do what with them. The first entry of `allow` that names a
    caller decides."""

    # The tenant's id.
    tenant: str
    allow: tuple[Allowed, ...]
    audience: str = AUDIENCE
    authority: str = AUTHORITY
    # For how long known signing keys count while their endpoint does not answer.
    max_age_s: Seconds = _MAX_AGE_S

    @property
    def issuers(self) -> dict[str, str]:
        """The issuer that a token of each version must name."""
        return {
            "1.0": f"{_ISSUERS_V1.get(self.authority, self.authority)}/{self.tenant}/",
            "2.0": f"{self.authority}/{self.tenant}/v2.0",
        }

    @property
    def audiences(self) -> frozenset[str]:
        """What a token may be for: SDKs ask for the resource with and without a trailing slash."""
        return frozenset({self.audience, f"{self.audience}/"})

    @property
    def keys_url(self) -> str:
        """Where the tenant's signing keys are."""
        return f"{self.authority}/{self.tenant}/discovery/v2.0/keys"

    @property
    def challenge(self) -> str:
        """The value of `WWW-Authenticate`, as the service words it: it tells SDKs tenant and resource."""
        authorizes = f"{self.authority}/{self.tenant}/oauth2/authorize"
        return f"Bearer authorization_uri={authorizes} resource_id={self.audience}"

    @property
    def names(self) -> frozenset[str]:
        """The names of entries with aliases of their own."""
        return frozenset(entry.name for entry in self.allow if entry.name)


@dataclass(frozen=True, slots=True)
class TenantCheck:
    """What `rekey doctor` found out about a tenant."""

    # The number of its signing keys.
    keys: int = 0
    # Why there are none: the name of an error.
    failure: str = ""
    # Why a token of this process's own identity is refused; "": it is not; None: not tried.
    own: str | None = None


def read_entra(section: Section) -> Entra | None:
    """Read the section; None without one. Raises ConfigurationError."""
    if not section.content:
        return None
    section.allow("tenant", "allow", "audience", "authority", "max_age")
    tenant = _guid(section, "tenant", "name the tenant by its id: `az account show --query tenantId`")
    audience = (section.text("audience") or AUDIENCE).strip().removesuffix("/")
    if not audience or any(letter.isspace() or letter in '",=' for letter in audience):
        section.fail(
            "audience", "is not what a token can be for", f'write for example audience = "{AUDIENCE}"'
        )
    max_age_s = section.duration("max_age") if "max_age" in section.content else _MAX_AGE_S
    if not max_age_s:
        section.fail("max_age", "is no time", 'write for example max_age = "24h"')
    return Entra(tenant, _allow(section), audience, _authority(section), max_age_s)


def _authority(section: Section) -> str:
    authority = (section.text("authority") or AUTHORITY).strip().rstrip("/")
    try:
        parts = urlsplit(authority)
        host = parts.hostname
    except ValueError:
        host = None
    is_plain = host is not None and authority == f"{parts.scheme}://{parts.netloc}" and "@" not in authority
    # Whoever answers for the authority decides whose tokens hold: http is for a test on this machine.
    if not is_plain or (parts.scheme != "https" and not (parts.scheme == "http" and host in _LOOPBACK)):
        section.fail("authority", "is not the https address of an issuer", f'write authority = "{AUTHORITY}"')
    return authority.lower()


def _allow(section: Section) -> tuple[Allowed, ...]:
    entries = section.content.get("allow")
    example = 'write allow = [{ object_id = "ID", view = "old", rights = "write" }]'
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        section.fail("allow", "is not a list of principals, each with view and rights", example)
    allowed = tuple(
        _allowed(Section(section.path, f"{section.name}.allow", entry, section.text_of_file))
        for entry in entries
    )

    if len({(entry.kind, entry.id) for entry in allowed}) < len(allowed):
        section.fail("allow", "names a principal twice", "the first entry decides: remove the other one")
    return allowed


def _allowed(entry: Section) -> Allowed:
    entry.allow(*PrincipalKind, "view", "rights", "name")
    kinds = [kind for kind in PrincipalKind if kind in entry.content]
    if len(kinds) != 1:
        entry.fail("", "must have exactly one of object_id, app_id, group", "write an entry for each")
    [kind] = kinds
    for key, words in (("view", View), ("rights", Rights)):
        if entry.content.get(key) not in list(words):
            known = ", ".join(f'"{word}"' for word in words)
            entry.fail(key, "is missing or unknown; it is never inferred", f"write {key} = one of {known}")
    name = entry.text("name") or ""
    if name and not _NAME.fullmatch(name):
        entry.fail("name", "is not a name", "use letters, digits, `_` and `-`")
    identity = _guid(entry, kind, "write the id that `az ad` shows, not a name")
    return Allowed(kind, identity, View(entry.content["view"]), Rights(entry.content["rights"]), name)


def _guid(section: Section, key: str, cure: str) -> str:
    text = (section.text(key) or "").strip().lower()
    if not _GUID.fullmatch(text):
        section.fail(key, "is not an id of the form 00000000-0000-0000-0000-000000000000", cure)
    return text
