"""The transport's choices that no test on a wire shows."""

from __future__ import annotations

import pytest

from rekey.errors import EndpointDown
from rekey.model import EntityKey
from rekey.tables.azure import AzureTableService
from rekey.tables.credentials import SharedKey
from rekey.tables.requests import RetryPolicy
from rekey.tables.sent import RequestKind
from rekey.tables.transport import Network, Timeouts, environment_proxy
from tests.asserts.every import every
from tests.fakes.fault_proxy import Answered, Fault, FaultProxy

ENDPOINT = "https://account.table.core.windows.net"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_proxy_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment_proxy(ENDPOINT) is None
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert environment_proxy(ENDPOINT) == "http://proxy.example:3128"
    assert environment_proxy("http://127.0.0.1:10002/tables") is None


def test_no_proxy_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "localhost,.core.windows.net")
    assert environment_proxy(ENDPOINT) is None


async def test_a_proxy_of_the_environment_is_what_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultProxy("http://127.0.0.1:9") as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.address)
        proxy.faults.append(Fault(answer=Answered(204)))
        async with AzureTableService.open(
            "http://tables.example/account", SharedKey("account", b"k")
        ) as service:
            await service.create_table("Users")
        assert [asked.target for asked in proxy.asked] == ["http://tables.example/account/Tables"]


async def test_a_given_proxy_precedes_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with FaultProxy("http://127.0.0.1:9") as proxy:
        proxy.faults.append(Fault(answer=Answered(204)))
        async with AzureTableService.open(
            "http://tables.example/account",
            SharedKey("account", b"k"),
            network=Network(proxies={"http": proxy.address}),
        ) as service:
            await service.create_table("Users")
        assert [asked.target for asked in proxy.asked] == ["http://tables.example/account/Tables"]


async def test_each_request_has_an_agent_and_an_id_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_HTTP_USER_AGENT", "of-ours/1")
    async with FaultProxy("http://127.0.0.1:9") as proxy:
        proxy.faults.append(Fault(answer=Answered(204), times=2))
        async with AzureTableService.open(f"{proxy.address}/account", SharedKey("account", b"k")) as service:
            await service.create_table("Users")
            await service.create_table("Users")
    heads = [{name.lower(): value for name, value in asked.headers.items()} for asked in proxy.asked]
    assert len({head["x-ms-client-request-id"] for head in heads}) == len(heads) == 2
    assert every(head["user-agent"].startswith("rekey/") for head in heads)
    assert every(head["user-agent"].endswith(" of-ours/1") for head in heads)


async def test_a_listener_hears_of_each_answer_and_of_none_in_time_and_each_attempt_is_admitted() -> None:
    heard: list[tuple[RequestKind, int]] = []
    admitted: list[RequestKind] = []

    async def admit(kind: RequestKind) -> None:
        admitted.append(kind)

    async with FaultProxy("http://127.0.0.1:9") as proxy:
        proxy.faults += [Fault(answer=Answered(503)), Fault(stalls=True), Fault(answer=Answered(204))]
        async with AzureTableService.open(
            f"{proxy.address}/account",
            SharedKey("account", b"k"),
            network=Network(Timeouts(read=0.2)),
            retry=RetryPolicy(min_wait=0.01),
        ) as service:
            service.listen(lambda kind, status, _: heard.append((kind, status)), admit)
            await service.create_table("Users")
    assert heard == [(RequestKind.TABLE, 503), (RequestKind.TABLE, 0), (RequestKind.TABLE, 204)]
    assert admitted == [RequestKind.TABLE] * 3


async def test_trusted_certificates_that_cannot_be_read_fail_the_attempt_and_not_the_program() -> None:
    policy = RetryPolicy(attempts=1, connect_attempts=1)
    async with AzureTableService.open(
        ENDPOINT, SharedKey("account", b"k"), retry=policy, network=Network(verify="no-such-file.pem")
    ) as service:
        with pytest.raises(EndpointDown, match="FileNotFoundError"):
            await service.table("Users").get(EntityKey("p", "r"))
