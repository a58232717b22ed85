"""The transport's choices that no test on a wire shows."""

from __future__ import annotations

import pytest

from rekey.tables.transport import environment_proxies

ENDPOINT = "https://account.table.core.windows.net"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_proxy_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment_proxies(ENDPOINT) is None
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert environment_proxies(ENDPOINT) == {"https://": "http://proxy.example:3128"}
    assert environment_proxies("http://127.0.0.1:10002/tables") is None


def test_no_proxy_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "localhost,.core.windows.net")
    assert environment_proxies(ENDPOINT) is None
