"""A witness: reads both sides through the Azure SDK, not through the tables layer under test, and compares
them row by row with the application's record and the declaration's mapper. Wrong rows are named by safe
id."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import ResourceNotFoundError
from azure.core.pipeline.transport import RequestsTransport
from azure.data.tables import TableClient, TableServiceClient

from rekey.core.edm import canonical_content
from rekey.core.joint import is_joint, joint_row, names_in, prefix_of
from rekey.core.limits import is_in_target_account, own_name
from rekey.core.safe_ids import SafeIds
from rekey.declaration.mapper import Mapper
from rekey.mapping import sealing
from rekey.mapping.rows import CONTROL_TABLE, MAPPING_TABLE
from rekey.model import EntityKey, KeyRange, Row, key_of
from rekey.rehearse.azurite import AzuriteAccount
from rekey.state.models import KeyTexts

# Maximum wrong rows named on each side.
NAMED = 5
_CONTROL_ROW_KEY = "control"
# A target row: its table's number, and its key.
Place: TypeAlias = tuple[int, EntityKey]
# A table, the key of a row, and what is wrong with it.
_Wrong: TypeAlias = tuple[str, EntityKey, str]


def digest_of(row: Row, leave_out: Iterable[str] = ()) -> bytes:
    """Return a digest of a row's content: (name, EDM type, canonical text) of every property not left out."""
    left_out = frozenset(leave_out)
    content = [each for each in canonical_content(row) if each[0] not in left_out]
    return hashlib.blake2b(repr(content).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def key_of_account(account: AzuriteAccount) -> AzureNamedKeyCredential:
    """Return an account's key for the SDK."""
    return AzureNamedKeyCredential(account.name, account.key)


def open_service(account: AzuriteAccount) -> TableServiceClient:
    """Return the SDK's client of an account."""
    # Without the machine's proxy settings: Azurite is on loopback.
    transport = RequestsTransport(use_env_settings=False)
    return TableServiceClient(account.endpoint, credential=key_of_account(account), transport=transport)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a comparison."""

    # Rows read on either side.
    source_rows: int
    target_rows: int
    # Target rows of deleted source rows that the sweep will remove.
    lingering: int
    # What is wrong, one sentence each.
    wrong: tuple[str, ...]
    # Digest of every row the targets must hold, by table number and key.
    expected: Mapping[Place, bytes] = field(repr=False)


@dataclass
class Witness:
    """Compares the tables of a migration. In memory it holds digests of rows, about 400 bytes each.
    `wrapping` is the wrapping key of a sealed mapping, else None."""

    tables: TableServiceClient
    restricted: TableServiceClient
    script_id: str
    mapper: Mapper
    wrapping: sealing.WrappingKey | None = None
    targets: TableServiceClient | None = None
    # Digests of the source's rows that are not in the part that is migrated.
    beside: dict[EntityKey, bytes] = field(default_factory=dict)

    @property
    def source_name(self) -> str:
        return self.mapper.migration.source

    def service(self, table: str) -> TableServiceClient:
        """Return the SDK's client of a table's account."""
        return self.targets if self.targets is not None and is_in_target_account(table) else self.tables

    def client(self, table: str) -> TableClient:
        return self.service(table).get_table_client(own_name(table))

    def rows(self, table: str) -> Iterator[Row]:
        """Yield the wire rows of a table, which may be joint, in service order within each table. SDK values
        would hide digits and the case of Guids."""
        for name in names_in(table):
            seen: list[Any] = []
            prefix = prefix_of(name) if is_joint(table) else ""
            rows = self.client(name).list_entities(results_per_page=1000, raw_response_hook=_keeping(seen))
            for _ in rows.by_page():
                while seen:
                    yield from (joint_row(prefix, row) for row in seen.pop(0)["value"])

    def get(self, table: str, key: EntityKey) -> Row | None:
        try:
            return _wire_row(self.client(table), key)
        except ResourceNotFoundError:
            return None

    def exists(self, table: str) -> bool:
        own = own_name(table).lower()
        return any(item.name.lower() == own for item in self.service(table).list_tables())

    def safe_ids(self) -> SafeIds:
        """Return the migration's safe ids, made with the control row's key and, if sealed, the root key."""
        id_key, root = self._keys()
        return SafeIds(id_key if root is None else sealing.ids_key(root, id_key))

    def cursor_keys(self) -> KeyTexts:
        """Return the form of keys in the state file: sealed or plain."""
        id_key, root = self._keys()
        if root is None:
            return KeyTexts()
        return sealing.SealedKeys(self.script_id, sealing.cursors_key(root, id_key))

    def _keys(self) -> tuple[bytes, sealing.DataKey | None]:
        """Return the key of the safe ids, and the root key of a sealed mapping."""
        control = self.restricted.get_table_client(CONTROL_TABLE)
        key, group = EntityKey(self.script_id, _CONTROL_ROW_KEY), self.mapper.migration.group
        if group:
            key = EntityKey(f"group:{group}", self.script_id)
        id_key = base64.b64decode(_wire_row(control, key)["IdKey"])
        if self.wrapping is None:
            return id_key, None
        mapping = self.restricted.get_table_client(MAPPING_TABLE)
        row = _wire_row(mapping, EntityKey(sealing.key_partition(self.script_id), sealing.ROOT))
        return id_key, sealing.read_data_key(self.script_id, row, self.wrapping)

    # --- comparing ---------------------------------------------------------------------------------------

    def compare(
        self,
        must_hold: Mapping[EntityKey, bytes],
        *,
        may_linger: frozenset[Place] = frozenset(),
        after_cutover: bool = False,
    ) -> Finding:
        """Compare the source with what it must hold, and every target with what the source maps to.

        Args:
            must_hold: digest of every source row by key, as the application left them.
            may_linger: target rows of deleted source rows that the sweep has not removed yet.
            after_cutover: ignore copies of the source's Timestamp: a row written back has another one.
        """
        wrong: list[_Wrong] = []
        expected: dict[Place, bytes] = {}
        source_rows, all_rows = 0, {**must_hold, **self.beside}
        for row in self.rows(self.source_name):
            source_rows += 1
            key = key_of(row)
            if all_rows.get(key) != digest_of(row):
                what = "is altered" if key in all_rows else "must not be there"
                wrong.append((self.source_name, key, what))
            for table, target in self.mapper.map(row) if self.mapper.migration.has(key) else ():
                expected[table, key_of(target)] = self._digest(table, target, after_cutover)
        sentences = self._named(wrong)
        if not wrong and source_rows != len(all_rows):
            sentences.append(f"{self.source_name} holds {source_rows} rows, and must hold {len(all_rows)}")
        finding = self.compare_targets(expected, may_linger=may_linger, after_cutover=after_cutover)
        return replace(finding, source_rows=source_rows, wrong=(*sentences, *finding.wrong))

    def rows_beside(self) -> list[str]:
        """Return what is wrong with a source that must hold the rows beside the part alone."""
        there = {key_of(row): digest_of(row) for row in self.rows(self.source_name)}
        wrong = [(self.source_name, key, "is lost") for key in self.beside.keys() - there.keys()]
        changed = [key for key, digest in there.items() if self.beside.get(key) != digest]
        return self._named([*wrong, *((self.source_name, key, "must not be so") for key in changed)])

    def compare_targets(
        self,
        expected: Mapping[Place, bytes],
        *,
        may_linger: frozenset[Place] = frozenset(),
        after_cutover: bool = True,
    ) -> Finding:
        """Compare every target with what it must hold, without the source, which may be deleted. `expected`:
        digests by place."""
        wrong: list[_Wrong] = []
        read = met = lingering = 0
        for number in self.mapper.read_once:
            name = self.mapper.tables[number]
            for row in self.rows(name):
                read += 1
                table = self.mapper.number_of(number, row)
                place = (table, key_of(row))
                digest = expected.get(place)
                met += digest is not None
                if digest is None and place in may_linger:
                    lingering += 1
                elif digest is None:
                    wrong.append((name, place[1], "has no source row"))
                elif digest != self._digest(table, row, after_cutover):
                    wrong.append((name, place[1], "is not what its source row gives"))
        sentences = self._named(wrong)
        if met != len(expected):
            sentences.append(f"{len(expected) - met} target rows are missing")
        return Finding(0, read, lingering, tuple(sentences), expected)

    def _named(self, wrong: Sequence[_Wrong]) -> list[str]:
        if not wrong:
            return []
        ids = self.safe_ids()
        named = [f"row {ids.short(table, key)} of {table} {what}" for table, key, what in wrong[:NAMED]]
        return [*named, f"and {len(wrong) - NAMED} rows more"] if len(wrong) > NAMED else named

    def _digest(self, table: int, row: Row, after_cutover: bool) -> bytes:
        return digest_of(row, self.mapper.timestamp_copies[table] if after_cutover else ())

    def missing_within(self, claimed: Sequence[KeyRange]) -> tuple[int, int]:
        """Return how many source rows are in the key ranges, and how many of them have no main target row."""
        there = {key_of(row) for row in self.rows(self.mapper.tables[0])}
        looked_at, missing = 0, 0
        for row in self.rows(self.source_name):
            key, claims = key_of(row), any(key_of(row) in key_range for key_range in claimed)
            if not claims or not self.mapper.migration.has(key) or self.mapper.is_dropped(row):
                continue
            looked_at += 1
            missing += key_of(self.mapper.map(row)[0].row) not in there
        return looked_at, missing


def _wire_row(client: TableClient, key: EntityKey) -> Row:
    seen: list[Row] = []
    client.get_entity(key.partition, key.row, raw_response_hook=_keeping(seen))
    return seen[0]


def _keeping(seen: list[Any]) -> Callable[[Any], None]:
    """Return a hook for the SDK that keeps the service's own JSON of each response."""
    return lambda response: seen.append(json.loads(response.http_response.text()))
