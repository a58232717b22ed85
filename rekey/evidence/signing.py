"""Which key signs: what the configuration says, opened."""

from __future__ import annotations

from rekey.evidence.keyfiles import read_private
from rekey.evidence.keys import Signer
from rekey.project.config import Config


def open_signer(config: Config) -> Signer | None:
    """Return who signs evidence, None when no key is configured.

    Raises:
        ConfigurationError: the key file cannot be read or holds no Ed25519 key; the Key Vault client is not
            installed.
    """
    key = config.evidence
    if key.key_vault is not None:
        from rekey.evidence.keyvault import KeyVaultSigner

        return KeyVaultSigner(key.key_vault)
    return None if key.key_file is None else read_private(key.key_file)
