"""A gateway in front of Azurite that decodes the addresses of rows twice, as Microsoft documented for the
Table service; queries and transactions pass as they are."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote, unquote, urlsplit

from rekey.rehearse.azurite import AzuriteAccount
from rekey.tables.credentials import SharedKey, signed_headers
from tests.fakes.fault_proxy import Answered, Asked, FaultProxy


class DecodingGateway(FaultProxy):
    """Passes requests on to an account of Azurite, signed anew where their address was decoded again.

    Attributes:
        misread: how many requests were passed on with another address.
    """

    def __init__(self, account: AzuriteAccount) -> None:
        parts = urlsplit(account.endpoint)
        super().__init__(f"{parts.scheme}://{parts.netloc}")
        self._account = account
        self._credential = SharedKey.of(account.name, account.key)
        self.misread = 0

    async def __aenter__(self) -> DecodingGateway:
        await super().__aenter__()
        return self

    @property
    def account(self) -> AzuriteAccount:
        """The account as it is reached through the gateway."""
        path = urlsplit(self._account.endpoint).path
        return replace(self._account, endpoint=self.address + path)

    async def _pass_on(self, asked: Asked) -> Answered:
        path, mark, query = asked.target.partition("?")
        if "(PartitionKey=" in path:
            decoded = quote(unquote(unquote(path)), safe="/(),='")
            self.misread += unquote(decoded) != unquote(path)
            target = decoded + mark + query
            signed = signed_headers(self._credential, self._upstream + target)
            asked = replace(asked, target=target, headers={**asked.headers, **signed})
        return await super()._pass_on(asked)
