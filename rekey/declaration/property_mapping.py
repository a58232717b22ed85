"""How the properties of a new row are made from a source row, and back. Conflicts between operations are
found when the declaration is made; at run time an operation can conflict only with a row's own properties."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

from rekey.core.edm import DATETIME, STRING, canonical, canonical_content, edm_type
from rekey.declaration.casts import ANNOTATED, Lossy, cast_value, casts_from
from rekey.declaration.keys.base import WHOLE_ROW, Expression, Scope, invalid, need, refuse_if
from rekey.declaration.old_references import (
    NOTHING_LOOKED_UP,
    OldReference,
    OldValues,
    ReferredKey,
    old_reference_of,
)
from rekey.declaration.props import Cast, Compute, Copy, Drop, Keep, KeepAll, Operation, Rename, Set
from rekey.errors import RowRefused
from rekey.model import (
    PARTITION_KEY,
    ROW_KEY,
    SYSTEM_PROPERTIES,
    TIMESTAMP,
    TYPE_SUFFIX,
    EntityKey,
    Row,
    property_names,
)

# Reads source rows (first argument) and fills the new row of each (second). Steps copy wire values with their
# annotations and never decode them, except for a cast.
Step: TypeAlias = Callable[[Sequence[Row], Sequence[Row]], None]

# Gives the row that a new row refers to, from that row and the source row that it gives back.
Referring: TypeAlias = Callable[[Row, Row], ReferredKey | None]


@dataclass(frozen=True)
class Backward:
    """What undoing the mapping of a row takes: the mapping, compiled."""

    forward: Step
    scope: Scope
    # The references in whose place the source holds other properties.
    old_references: Sequence[tuple[OldReference, Referring]] = ()


_NAMED_AT_MOST = 3
_KNOWN_SHAPES = 4096


def _every(_name: str) -> bool:
    return True


@dataclass(frozen=True)
class PropertyMapping:
    """The operations of one target, by what they do. Created and checked by `property_mapping_of`."""

    field: str  # where in the declaration, e.g. `target.properties`.
    kept: frozenset[str] | None  # the only source properties copied; None means all
    dropped: frozenset[str]  # source properties not copied
    renames: Mapping[str, str]  # new name by old name
    copies: Mapping[str, str]  # source (property or key) by the copy's name
    constants: Mapping[str, Set]  # `Set` by name
    computed: Mapping[str, Compute]  # `Compute` by name
    casts: Mapping[str, Cast]  # `Cast` by the name in the new row

    def carries(self, name: str) -> bool:
        """Tell whether a source property is copied into the new row under its own name."""
        if name in self.dropped or name in self.renames or name in self.replaced or name in self.removed:
            return False
        return self.kept is None or name in self.kept

    @property
    def replaced(self) -> frozenset[str]:
        """Names in the new row whose values do not come from the source property of that name."""
        return frozenset({*self.constants, *self.computed})

    @cached_property
    def removed(self) -> frozenset[str]:
        """Source properties that references take the place of (`keep_old=False`)."""
        return frozenset(operation.removes for operation in self.computed.values()) - {""}

    @cached_property
    def old_references(self) -> tuple[OldReference, ...]:
        """What is needed to look up each of `removed`. Raises InvalidDeclaration: it cannot be looked up."""
        named = {operation.removes: operation for operation in reversed([*self.computed.values()])}
        return tuple(
            old_reference_of(named[name], self.computed, self.can_read, self.casts)
            for name in sorted(self.removed)
        )

    def can_read(self, name: str) -> bool:
        """Tell whether the new row says what a property or key of the source is, under whatever name."""
        return name in SYSTEM_PROPERTIES or name in self._old_names.values() or self.carries(name)

    @property
    def created(self) -> frozenset[str]:
        """Names in the new row that operations create."""
        return frozenset({*self.renames.values(), *self.copies, *self.replaced})

    @property
    def restored(self) -> dict[str, str]:
        """Source properties that are in the new row only as a copy, by the copy's name."""
        return {
            to: source
            for to, source in self.copies.items()
            if source not in SYSTEM_PROPERTIES and source not in self.renames and not self.carries(source)
        }

    @property
    def _old_names(self) -> dict[str, str]:
        """Source properties that the new row holds under another name only, by that name."""
        return {new: old for old, new in self.renames.items()} | self.restored

    @property
    def ambiguous(self) -> dict[str, str]:
        """Names that a rename or copy gives and that source rows may have of their own, each with the source
        property that it is given to. A new row alone does not always say whose its property is."""
        named = {**{new: old for old, new in self.renames.items()}, **self.copies}
        return {
            name: source
            for name, source in named.items()
            if source not in SYSTEM_PROPERTIES and self.carries(name)
        }

    def gives_back(self, name: str) -> bool:
        """Tell whether the new row alone says what a source property was: it is there, uncast, under its own
        name or one that an operation gives it. A property that had the latter name already is taken for it.
        """
        if name in self.renames:
            return self.renames[name] not in self.casts
        if copies := [to for to, source in self.restored.items() if source == name]:
            return not self.casts.keys() & copies
        is_own = self.carries(name) and name not in self.created and name not in SYSTEM_PROPERTIES
        return is_own and name not in self.casts

    @property
    def lost(self) -> frozenset[str]:
        """The source properties that operations name and that the new row does not give back; where `kept` is
        set, all others are lost as well."""
        cast = self.casts.keys() - self.created
        named = {*self.dropped, *self.removed, *self.replaced, *self.renames, *self.copies.values(), *cast}
        return frozenset(name for name in named - SYSTEM_PROPERTIES if not self.gives_back(name))

    def unrecoverable(self, keys: Iterable[Expression]) -> Iterator[tuple[Compute, str]]:
        """Yield each computed property with each property that it is made of and that only the source holds,
        unless a computed property or a key of the new row differs whenever that one does. Otherwise the new
        row is the same whether the source's value still holds or not. `keys`: the new row's."""
        computed = self.computed.values()
        expressions = [operation.of for operation in computed] + list(keys)
        recoverable = {*self._old_names.values(), *SYSTEM_PROPERTIES, WHOLE_ROW}
        for operation in computed:
            # Where a text takes the place of what it is made of, the source keeps that as it was spelled.
            in_place = {operation.name} if operation.reference is None else set[str]()
            for name in sorted(operation.inputs() - recoverable - in_place):
                if not self.carries(name) and not any(each.distinguishes(name) for each in expressions):
                    yield operation, name

    @property
    def inputs(self) -> frozenset[str]:
        """The keys and properties of a source row that operations name to make the new row; contains
        `WHOLE_ROW` where a custom function may read any. Where `kept` is None, all others are carried."""
        computed = [operation.inputs() for operation in self.computed.values()]
        named = frozenset({*(self.kept or ()), *self.renames, *self.copies.values()})
        return named.union(*computed)

    @property
    def from_timestamp(self) -> frozenset[str]:
        """Properties of the new row that hold the source row's Timestamp."""
        return frozenset(to for to, source in self.copies.items() if source == TIMESTAMP)

    def copy_of_key(self, key: str) -> str | None:
        """Return the property of the new row that holds the source's `PartitionKey` or `RowKey` unchanged."""
        copies = (to for to, source in self.copies.items() if source == key and to not in self.casts)
        return next(copies, None)

    # --- forward -------------------------------------------------------------------------------------

    def compile(self, scope: Scope) -> Step:
        """Return the step that fills new rows, which already have their keys, from source rows."""
        if self.kept is not None:
            carry = _carrying_only([name for name in sorted(self.kept) if self.carries(name)])
        else:
            carry = _carrying_all_but(
                {*self.dropped, *self.removed, *self.renames, *self.replaced, *SYSTEM_PROPERTIES}
            )
        steps = [
            carry,
            *(_moving(old, new, scope) for old, new in self.renames.items()),
            *(_copying(source, to, scope) for to, source in self.copies.items()),
            *(_setting(constant) for constant in self.constants.values()),
            *(_computing(computed, scope) for computed in self.computed.values()),
            *(_casting(cast, scope) for cast in self.casts.values()),
        ]

        def run(rows: Sequence[Row], new_rows: Sequence[Row]) -> None:
            for step in steps:
                step(rows, new_rows)

        return run

    # --- backward ------------------------------------------------------------------------------------

    def undo(
        self,
        target: Row,
        old_key: EntityKey,
        source: Row | None,
        steps: Backward,
        old_values: OldValues = NOTHING_LOOKED_UP,
    ) -> Row:
        """Return the source row that maps to exactly `target`, so that nothing an application wrote to the
        target is silently lost. Properties that the mapping does not carry stay as in `source`; unchanged
        ones keep its spelling and annotation. `old_values`: those of `to_look_up`, as far as they are known.

        Raises:
            RowRefused: `not-reversible` when no source row maps to this target row, `no-old-reference` when
                one of `to_look_up` is needed and not known.
        """
        forward, scope = steps.forward, steps.scope
        row, mapped = self._undone(target, old_key, source, steps)
        for old, referred in steps.old_references:
            if old.is_same(mapped, target):
                continue
            row.pop(old.name, None)
            row.pop(old.name + TYPE_SUFFIX, None)
            if referred(target, row) is not None:
                if old.name not in old_values:
                    raise old.unknown(scope)
                row[old.name] = old_values[old.name]
        for to in sorted(self.from_timestamp):
            # `forward` below needs the copied moment; writers leave it out of the row anyway
            if (moment := target.get(to, target.get(TIMESTAMP))) is not None:
                row[TIMESTAMP] = moment
        again: Row = {}
        try:
            forward([row], [again])
        except RowRefused as refusal:
            if refusal.code != "missing-property":
                raise
            # Either the Timestamp, or what a property is computed from, which no source row can lack.
            if self.from_timestamp and row.get(TIMESTAMP) is None:
                return row
            raise _not_reversible(scope, sorted(self.computed)) from None
        ours, theirs = canonical_content(again), canonical_content(target)
        if differing := {name for name, _, _ in {*ours} ^ {*theirs}} - self.from_timestamp:
            raise _not_reversible(scope, sorted(differing))
        return row

    def to_look_up(
        self, target: Row, old_key: EntityKey, source: Row | None, steps: Backward
    ) -> dict[str, ReferredKey]:
        """Return the rows whose old keys are needed for `undo`, by the property of the source. Raises
        RowRefused."""
        row, mapped = self._undone(target, old_key, source, steps)
        needed = {
            old.name: referred(target, row)
            for old, referred in steps.old_references
            if not old.is_same(mapped, target)
        }
        return {name: referred for name, referred in needed.items() if referred is not None}

    def _undone(
        self, target: Row, old_key: EntityKey, source: Row | None, steps: Backward
    ) -> tuple[Row, Row]:
        """Return a source row with what the target and source rows say, and the row that `source` maps to,
        empty if there is none. Raises RowRefused."""
        row: Row = {PARTITION_KEY: old_key.partition, ROW_KEY: old_key.row}
        self._undo_properties(target, row, steps.scope)
        mapped: Row = {}
        if source is not None:
            try:
                steps.forward([source], [mapped])
            except RowRefused:
                mapped = {}  # an unmappable source row gave no target value
            self._keep_source_properties(target, row, source, mapped)
        return row, mapped

    def source_properties(
        self, target: Row, old_key: EntityKey, needed: Callable[[str], bool], scope: Scope
    ) -> Row:
        """Return a source row with the properties that a target row gives back, of those that are needed,
        whether or not it maps to that row again. Raises RowRefused."""
        row: Row = {PARTITION_KEY: old_key.partition, ROW_KEY: old_key.row}
        self._undo_properties(target, row, scope, needed)
        return row

    def _undo_properties(
        self, target: Row, row: Row, scope: Scope, needed: Callable[[str], bool] = _every
    ) -> None:
        old_names = self._old_names
        for name in property_names(target):
            if name in old_names:
                old = old_names[name]
            elif self.carries(name) and self._is_own(name, target):
                old = name
            else:
                continue
            if not needed(old):
                continue
            value, edm = target[name], target.get(name + TYPE_SUFFIX)
            if name in self.casts:
                back = self.casts[name].inverse()
                if back is None:
                    raise _not_reversible(scope, [name])
                try:
                    value = cast_value(value, edm_type(target, name), back.to)
                except Lossy:
                    raise _not_reversible(scope, [name]) from None
                edm = back.to if back.to in ANNOTATED else None
            row[old] = value
            if edm is not None:
                row[old + TYPE_SUFFIX] = edm

    def _is_own(self, name: str, target: Row) -> bool:
        """Tell whether a property of the new row is no copy. A copy has its source beside it, where the new
        row holds that; a row without it can have a property of its own under the copy's name."""
        source = self.copies.get(name)
        return source is None or (
            source not in SYSTEM_PROPERTIES and target.get(self.renames.get(source, source)) is None
        )

    def _keep_source_properties(self, target: Row, row: Row, source: Row, mapped: Row) -> None:
        old_names = self._old_names
        new_names = {name: name for name in property_names(source)} | dict(self.renames)
        new_names |= {old: to for to, old in self.restored.items()}
        for old in property_names(source):
            new = new_names[old]
            lost = not self.carries(old) and old not in self.renames and old not in self.restored.values()
            same = new in mapped and new in target and canonical(mapped, new) == canonical(target, new)
            if lost or same:
                for field in _wire_fields(old):
                    row.pop(field, None)
                    if field in source:
                        row[field] = source[field]
            # The source row has a property under its new name already, and none to rename.
            other = old_names.get(old)
            if same and not lost and self.carries(old) and other is not None and source.get(other) is None:
                for field in _wire_fields(other):
                    row.pop(field, None)


def property_mapping_of(field: str, operations: Sequence[Operation], *, everything: bool) -> PropertyMapping:
    """Return the operations of one target, checked against each other. `everything`: whether properties that
    no operation names are copied (main target) or not (index). Raises InvalidDeclaration."""
    for operation in operations:
        need(field, operation, Operation, "is not a property operation", cure="use props.…")
    for operation in operations:
        in_index = not everything and isinstance(operation, Compute) and operation.removes
        refuse_if(in_index, field, "index-keep-old")
    keeps = [operation for operation in operations if isinstance(operation, Keep)]
    dropped = [name for operation in operations if isinstance(operation, Drop) for name in operation.names]
    refuse_if(len(keeps) > 1, field, "keep-twice")
    if any(isinstance(operation, KeepAll) for operation in operations):
        refuse_if(keeps, field, "keep-and-keep-all")
        refuse_if(everything, field, "keep-all-idle")
        everything = True
    reason = (
        "props.keep already leaves everything else out" if keeps else "an index row carries nothing unasked"
    )
    refuse_if(dropped and (keeps or not everything), field, "drop-idle", reason=reason)
    refuse_if(len(dropped) != len({*dropped}), field, "drop-twice")
    mapping = PropertyMapping(
        field=field,
        kept=frozenset(keeps[0].names) if keeps else (None if everything else frozenset[str]()),
        dropped=frozenset(dropped),
        renames=_by(field, "renames", ((o.old, o.new) for o in operations if isinstance(o, Rename))),
        copies={o.to: o.source for o in operations if isinstance(o, Copy)},
        constants={o.name: o for o in operations if isinstance(o, Set)},
        computed={o.name: o for o in operations if isinstance(o, Compute)},
        casts=_by(field, "casts", ((o.name, o) for o in operations if isinstance(o, Cast))),
    )
    creators: dict[str | None, Operation] = {}
    for operation in operations:
        if (created := operation.created) in creators:
            first, second = creators[created].describe(), operation.describe()
            raise invalid(field, "created-twice", first=first, second=second, created=created)
        if created is not None:
            creators[created] = operation
    _check_sources(mapping)
    return mapping


def _by(field: str, what: str, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    by_name: dict[str, Any] = {}
    for name, value in pairs:
        refuse_if(name in by_name, field, "two-of-name", name=name, what=what)
        by_name[name] = value
    return by_name


def _check_sources(mapping: PropertyMapping) -> None:
    field, dropped, constants = mapping.field, mapping.dropped, mapping.constants
    kept = mapping.kept or frozenset()
    created, copied = mapping.created, frozenset(mapping.copies.values())
    for old in mapping.renames:
        for verb, operation, others in (("dropped", "drop", dropped), ("kept", "keep", kept)):
            refuse_if(old in others, field, "kept-and-renamed", old=old, verb=verb, operation=operation)
    for name in sorted(mapping.removed):
        uses = ("dropped", dropped), ("kept", kept), ("renamed", {*mapping.renames}), ("copied", copied)
        for verb, names in uses:
            refuse_if(name in names, field, "removed-and-used", name=name, verb=verb)
    for name in mapping.replaced:
        what, only = ("set to a constant", "set") if name in constants else ("computed", "compute")
        refuse_if(name in dropped | kept, field, "replaced-and-kept", name=name, what=what, only=only)
    for name in created - mapping.replaced:
        refuse_if(name in kept, field, "created-and-kept", name=name)
    for name in mapping.casts:
        refuse_if(name in constants, field, "set-and-cast", name=name)
        refuse_if(name not in created and not mapping.carries(name), field, "cast-absent", name=name)


# --- the steps that fill new rows: each is compiled once and runs for all rows of a page -------------------


def _wire_fields(name: str) -> tuple[str, str]:
    return name, name + TYPE_SUFFIX


def _carrying_only(names: Iterable[str]) -> Step:
    wanted = [field for name in names for field in _wire_fields(name)]

    def carry_kept(rows: Sequence[Row], new_rows: Sequence[Row]) -> None:
        for row, out in zip(rows, new_rows, strict=True):
            for name in wanted:
                if row.get(name) is not None:
                    out[name] = row[name]

    return carry_kept


def _carrying_all_but(names: Iterable[str]) -> Step:
    skipped = frozenset(field for name in names for field in _wire_fields(name))

    # Rows of a table have few shapes (tuples of field names); what to copy is computed once per shape.
    @lru_cache(_KNOWN_SHAPES)
    def carried_of(shape: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in shape if name not in skipped and not name.startswith("odata."))

    def carry_all(rows: Sequence[Row], new_rows: Sequence[Row]) -> None:
        last: tuple[str, ...] = ()
        carried: tuple[str, ...] = ()
        for row, out in zip(rows, new_rows, strict=True):
            shape = tuple(row)
            if shape != last:  # comparing takes half as long as a lookup
                last, carried = shape, carried_of(shape)
            for name in carried:
                # The service stores no nulls: a null that an application sent is not a property.
                if (value := row[name]) is not None:
                    out[name] = value

    return carry_all


def _moving(old: str, new: str, scope: Scope) -> Step:
    annotation, new_annotation = old + TYPE_SUFFIX, new + TYPE_SUFFIX

    def move(rows: Sequence[Row], new_rows: Sequence[Row]) -> None:
        for row, out in zip(rows, new_rows, strict=True):
            value = row.get(old)
            if value is None:
                continue
            # A rename or copy never overwrites a property of the row.
            if new in out:
                problem = f"the row already has a property {new}"
                cure = f'drop it (props.drop("{new}")), rename it, or choose another name'
                raise scope.refusal("bad-property-name", problem, cure=cure)
            out[new] = value
            if (edm := row.get(annotation)) is not None:
                out[new_annotation] = edm

    return move


def _copying(source: str, to: str, scope: Scope) -> Step:
    move = _moving(source, to, scope)
    if source != TIMESTAMP:
        return move
    annotation = to + TYPE_SUFFIX

    def copy_timestamp(rows: Sequence[Row], new_rows: Sequence[Row]) -> None:
        if any(row.get(TIMESTAMP) is None for row in rows):
            problem = "the row has no Timestamp"
            cure = "read the row from the table first: only the service sets Timestamp"
            raise scope.refusal("missing-property", problem, cure=cure)
        move(rows, new_rows)
        for out in new_rows:
            out[annotation] = DATETIME

    return copy_timestamp


def _setting(constant: Set) -> Step:
    constants: Row = {constant.name: constant.value}
    if constant.edm in ANNOTATED:
        constants[constant.name + TYPE_SUFFIX] = constant.edm

    def set_constant(_: Sequence[Row], new_rows: Sequence[Row]) -> None:
        for out in new_rows:
            out.update(constants)

    return set_constant


def _computing(computed: Compute, scope: Scope) -> Step:
    name, evaluate, needed = computed.name, computed.of.compile_page(scope), computed.needed
    removes = computed.removes

    def compute(rows: Sequence[Row], new_rows: Sequence[Row]) -> None:
        pairs = list(zip(rows, new_rows, strict=True))
        removed = [row for row in rows if row.get(removes) is not None] if removes else []
        if any(edm_type(row, removes) != STRING for row in removed):
            problem = f"{removes} is no Edm.String, so a rollback could not give it back as it was"
            cure = f"leave {removes} in the row (keep_old=True), or fix the rows"
            raise scope.refusal("bad-reference", problem, cure=cure)
        if lacking := sorted({each for each in needed for row in removed if row.get(each) is None}):
            problem = f"the row has {removes} but not {', '.join(lacking)}, so the new row would say neither"
            problem += f" {removes} nor {name}"
            cure = f"leave {removes} in the row (keep_old=True), give partition= a default, or fix the rows"
            raise scope.refusal("bad-reference", problem, cure=cure)
        if needed:
            pairs = [pair for pair in pairs if all(pair[0].get(each) is not None for each in needed)]
        for (_, out), value in zip(pairs, evaluate([row for row, _ in pairs]), strict=True):
            out[name] = value

    return compute


def _casting(cast: Cast, scope: Scope) -> Step:
    name, to, was = cast.name, cast.to, cast.was
    annotation = name + TYPE_SUFFIX

    def change(out: Row) -> None:
        edm = edm_type(out, name)
        if edm == to and was is None:
            return
        try:
            if was is not None and edm != was:
                raise Lossy
            out[name] = cast_value(out[name], edm, to)
        except Lossy:
            problem = f"{name} is {edm} with a value that cannot become {to} without loss"
            if was is not None and edm != was:
                problem = f"{name} is {edm}, not {was} as the cast declares"
            cure = f"fix the rows, or leave the cast out ({edm} can become {', '.join(casts_from(edm))})"
            raise scope.refusal("bad-cast", problem, cure=cure) from None
        out.pop(annotation, None)
        if to in ANNOTATED:
            out[annotation] = to

    def change_all(_: Sequence[Row], new_rows: Sequence[Row]) -> None:
        for out in new_rows:
            if name in out:
                change(out)

    return change_all


def _not_reversible(scope: Scope, names: Sequence[str]) -> RowRefused:
    listed = ", ".join(names[:_NAMED_AT_MOST]) + (", …" if len(names) > _NAMED_AT_MOST else "")
    return scope.refusal(
        "not-reversible",
        f"no source row maps to this target row: it differs in {listed}",
        cure="do not change copies and constants in the target before `complete`, nor add properties that the"
        " mapping drops; set them back in this row",
    )
