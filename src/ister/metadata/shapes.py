"""What a build knows of commands, and what a command needs to be known.

A shape is a name and a number: a command, or a row that a command holds, and how many fields it has; or a
topic's setting, which is there (1). What a build knows follows from its classes. What a command needs is read
from its bytes, as far as this build can read them: a build that lacks something sees that it does.

Fields at the end that have their default are not written: an old build meets a new one only where it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from ister.metadata.commands import AlterTopic
from ister.protocol.messages import TopicSettings

Shapes = Mapping[str, int]
NOTHING: Final[Shapes] = MappingProxyType({})


class _Plan(NamedTuple):
    """How to walk through what a struct's class makes."""

    name: str
    defaults: list[Any]
    """Of all fields; `msgspec.NODEFAULT` where there is none."""
    rows: list[tuple[int, bool, _Plan]]
    """At which places are structs, whether they are lists of them, and how to walk through those."""


def shapes_of(kinds: Iterable[type[msgspec.Struct]]) -> dict[str, int]:
    """What a build knows that has these commands."""
    known: dict[str, int] = {}
    for kind in kinds:
        _note_all(_plan_of(kind), known)
    if AlterTopic.__name__ in known:
        known |= {_setting(name): 1 for name in TopicSettings.__struct_fields__}
    return dict(sorted(known.items()))


def shapes_needed(raw: list[Any], kinds: Mapping[str, type[msgspec.Struct]]) -> dict[str, int]:
    """What a command needs, as it came from the log: its name, then its fields."""
    name, *fields = raw
    kind = kinds.get(name)
    if kind is None:
        return {name: len(fields)}
    needed: dict[str, int] = {}
    _note(_plan_of(kind), fields, needed)
    if kind is AlterTopic:
        needed |= {_setting(setting): 1 for setting in fields[AlterTopic.__struct_fields__.index("changes")]}
    return needed


def what_lacks(known: Shapes, needed: Shapes) -> str:
    """The first shape that is not known, in words; empty if all are."""
    for name, fields in needed.items():
        there = known.get(name)
        if there is None:
            return name
        if there < fields:
            return f"{name} with {fields} fields"
    return ""


def without_defaults(value: msgspec.Struct) -> list[Any]:
    """A struct's fields as they are written."""
    return _written(_plan_of(type(value)), value)


def _setting(name: str) -> str:
    return f"setting {name}"


@cache
def _plan_of(kind: type[msgspec.Struct]) -> _Plan:
    hints = get_type_hints(kind)
    defaults = [
        field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(kind)
    ]
    rows = []
    for place, name in enumerate(kind.__struct_fields__):
        found = _struct_in(hints[name])
        if found is not None:
            rows.append((place, get_origin(hints[name]) is list, _plan_of(found)))
    return _Plan(kind.__name__, defaults, rows)


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """The struct that a field is, or is a list of."""
    for inner in (hint, *get_args(hint)):
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            return inner
    return None


def _note_all(plan: _Plan, known: dict[str, int]) -> None:
    known[plan.name] = len(plan.defaults)
    for _, _, inner in plan.rows:
        _note_all(inner, known)


def _note(plan: _Plan, fields: list[Any], needed: dict[str, int]) -> None:
    needed[plan.name] = max(needed.get(plan.name, 0), len(fields))
    for place, are_many, inner in plan.rows:
        if place < len(fields):
            for row in fields[place] if are_many else [fields[place]]:
                _note(inner, row, needed)


def _written(plan: _Plan, value: msgspec.Struct) -> list[Any]:
    fields = list(msgspec.structs.astuple(value))
    while fields and plan.defaults[len(fields) - 1] == fields[-1]:
        fields.pop()
    for place, are_many, inner in plan.rows:
        if place < len(fields):
            found = fields[place]
            fields[place] = [_written(inner, row) for row in found] if are_many else _written(inner, found)
    return fields
