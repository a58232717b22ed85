"""A P-256 key in Key Vault signs evidence. Key Vault is a small fake of its wire calls in this process: it
challenges, gives the public key, and signs digests as the service's REST reference describes (`keys/get-key`,
`keys/sign`). It was not tried on the real service."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    Prehashed,
    decode_dss_signature,
    encode_dss_signature,
)

from rekey.errors import ConfigurationError, CredentialRefused, EndpointDown, Unavailable
from rekey.evidence import bag, note, statement
from rekey.evidence.keys import P256_ORDER
from rekey.evidence.signing import KeyVaultSigner, open_signer
from rekey.evidence.statement import Statement
from rekey.evidence.verify import Trusted, verify
from rekey.project.config import load_config
from rekey.project.keyvault import split_url
from tests.fakes.key_vault import SAID, Credential, FakeVault, decoded, unpadded

URL = "https://acme.vault.azure.net/keys/evidence"
VERSION = "0123456789abcdef0123456789abcdef"


class Vault(FakeVault):
    """Holds one key."""

    def __init__(self, status: int = 200, curve: ec.EllipticCurve | None = None) -> None:
        super().__init__(status)
        self.private = ec.generate_private_key(curve or ec.SECP256R1())

    def answer(self, path: str, content: dict[str, str]) -> dict[str, Any]:
        return self._signed(content) if path.endswith("/sign") else self._key()

    def _key(self) -> dict[str, Any]:
        numbers = self.private.public_key().public_numbers()
        size = (self.private.curve.key_size + 7) // 8
        name = {"secp256r1": "P-256", "secp384r1": "P-384"}[self.private.curve.name]
        point = {"x": unpadded(numbers.x.to_bytes(size)), "y": unpadded(numbers.y.to_bytes(size))}
        kid = f"{URL}/{VERSION}"
        return {"key": {"kid": kid, "kty": "EC", "crv": name, "key_ops": ["sign"], **point}, "attributes": {}}

    def _signed(self, asked: dict[str, str]) -> dict[str, str]:
        assert asked["alg"] == "ES256"
        signature = self.private.sign(decoded(asked["value"]), ec.ECDSA(Prehashed(hashes.SHA256())))
        r, s = decode_dss_signature(signature)
        return {"kid": f"{URL}/{VERSION}", "value": unpadded(r.to_bytes(32) + s.to_bytes(32))}


def signer(vault: Vault, url: str = URL) -> KeyVaultSigner:
    return KeyVaultSigner(url, credential=Credential(), transport=vault, retry_total=0)


def test_what_key_vault_signs_is_checked_with_the_public_half_alone() -> None:
    vault = Vault()
    made = signer(vault)
    public = made.public
    assert public.algorithm == "es256"
    for data in (b"", b"x", bytes(1000)):
        signature = made.sign(data)
        assert public.verifies(signature, data)
        assert not public.verifies(signature, data + b"y")
    assert vault.asked[0] == "GET /keys/evidence"
    assert set(vault.asked[1:]) == {f"POST /keys/evidence/{VERSION}/sign"}, "one version signs all"


def test_a_checkpoint_can_be_signed_by_key_vault() -> None:
    made = signer(Vault())
    checkpoint = note.Checkpoint("rekey-audit-0", 1, bytes(32))
    text = note.signed(checkpoint, made).text
    assert note.parsed(text).is_by(made.public)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, ConfigurationError),
        (403, CredentialRefused),
        (401, CredentialRefused),
        (500, Unavailable),
        (0, EndpointDown),
    ],
)
def test_refusals_of_key_vault_lead_to_an_action(status: int, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        signer(Vault(status)).sign(b"x")
    assert caught.value.hint  # type: ignore[attr-defined]
    assert SAID not in str(caught.value)


def test_a_key_on_another_curve_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not an EC key on P-256"):
        _ = signer(Vault(curve=ec.SECP384R1())).public


@pytest.mark.parametrize(
    "url", ["http://a/keys/b", "https://a/secrets/b", "https://a/keys", "https://a/keys/b?c"]
)
def test_only_the_url_of_a_key_is_taken_for_one(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not the https URL of a Key Vault key"):
        signer(Vault(), url)
    assert split_url(f"{URL}/v", "keys") == ("https://acme.vault.azure.net", "evidence", "v")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.keyvault.keys", None)
    with pytest.raises(ConfigurationError, match="not installed") as error:
        signer(Vault())
    assert "rekey-tables[keyvault]" in error.value.hint


def test_the_configuration_says_which_key_signs(tmp_path: Path) -> None:
    usual = '[tables]\nendpoint = "https://a.table.core.windows.net"\n'
    usual += '[restricted]\nendpoint = "https://b.table.core.windows.net"\n[evidence]\n'
    path = tmp_path / "rekey.toml"
    path.write_text(usual, "utf-8")
    assert open_signer(load_config(path)) is None
    path.write_text(f'{usual}key_vault = "{URL}"\n', "utf-8")
    assert isinstance(open_signer(load_config(path)), KeyVaultSigner)
    path.write_text(f'{usual}key_vault = "{URL}"\nkey_file = "x.pem"\n', "utf-8")
    with pytest.raises(ConfigurationError, match="both key_file and key_vault"):
        load_config(path)
    path.write_text(f'{usual}key_file = "deep/x.pem"\n', "utf-8")
    config = load_config(path)
    assert config.evidence.key_file == tmp_path / "deep" / "x.pem"
    with pytest.raises(ConfigurationError, match="cannot be read"):
        open_signer(config)


def high(signature: bytes) -> bytes:
    """Return the other signature, which anyone can make: with the larger s."""
    r, s = decode_dss_signature(signature)
    return encode_dss_signature(r, P256_ORDER - min(s, P256_ORDER - s))


def test_of_the_two_signatures_that_verify_the_one_with_the_smaller_s_is_made_and_accepted() -> None:
    made = signer(Vault())
    for number in range(20):
        data = bytes([number])
        signature = made.sign(data)
        assert made.public.verifies(signature, data)
        assert made.public.verifies(high(signature), data, high_s=True)
        assert not made.public.verifies(high(signature), data)


@pytest.mark.parametrize(
    ("version", "right"), [("0.1.0", True), ("0.2.0", True), ("0.3.0", False), ("", False)]
)
def test_a_large_s_is_valid_only_from_a_version_that_kept(tmp_path: Path, version: str, right: bool) -> None:
    """One signature is not two: a changed byte of the envelope is found, also that one."""
    made = signer(Vault())
    signed = statement.signed(Statement({}, {"rekey": version}), made)
    changed = replace(signed, signature=high(signed.signature))
    (tmp_path / bag.STATEMENT).write_bytes(changed.data)
    verdict = verify(tmp_path, Trusted([made.public]))
    assert ("signature" not in {one.code for one in verdict.findings}) is right
