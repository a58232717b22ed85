"""The asynchronous client for applications."""

from __future__ import annotations

from rekey.client.sdk.client_async import DualWriteTableClient

__all__ = ["DualWriteTableClient"]
