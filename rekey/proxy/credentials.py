"""The keys that applications sign with, found where the configuration says."""

from __future__ import annotations

import base64

from rekey.errors import ConfigurationError
from rekey.project.config import Config
from rekey.project.secrets_source import MINIMUM_BYTES, read_local
from rekey.proxy.access import Access


def access_of(config: Config) -> Access:
    """Return whom the proxy of a project grants requests to.

    Raises:
        SecretMissing: a key is absent or too short.
        ConfigurationError: a key is not in base64, or nobody could use the proxy.
    """
    said, keys = config.proxy.access, {}
    for name, source in said.keys.items():
        setting = f"`[proxy.access.keys.{name}]`"
        try:
            keys[name] = base64.b64decode(read_local(f"key `{name}`", setting, source), validate=True)
        except ValueError:
            keys[name] = b""
        if len(keys[name]) < MINIMUM_BYTES:
            raise ConfigurationError(
                f"key `{name}` is no account key of at least {MINIMUM_BYTES} bytes in base64",
                hint=f"make one with `openssl rand -base64 48` and put it where {setting} says",
            )
    if not keys and not said.bearer_tokens:
        raise ConfigurationError(
            "nobody may use the proxy: no key is configured, and bearer tokens are not taken",
            hint="add a section [proxy.access.keys.NAME], with an account key of your own for an application",
        )
    return Access(config.tables.name, keys, said.bearer_tokens)
