"""Changes to JSON schemas, made by their structure: values such as `const` and `default` are left as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
"""Those that grammars enforce; all others are annotations."""

_ONE = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else", "unevaluatedItems")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OPENING = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames")

Edit = Callable[[dict[str, Any], bool], dict[str, Any]]
"""Takes a part of a schema, and whether it stands beside others in an `allOf`."""


def closed(schema: Any) -> Any:
    """The schema with objects that have the named properties alone, unless it opens them itself.

    An open object lets a small model invent keys until its output ends. Parts of an `allOf` stay open: each of them
    would refuse the properties of the others. A `format` that grammars do not know is left out.
    """
    return _edited(schema, _close, together=False)


def moved(schema: Any, place: str) -> Any:
    """The schema so that its references still lead to its own parts when it stands at `place` in another."""
    anchors = dict(_anchors(schema, place))

    def move(part: dict[str, Any]) -> dict[str, Any]:
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            part["$ref"] = anchors.get(reference) or place + reference.removeprefix("#")
        return {key: value for key, value in part.items() if key not in ("$id", "$anchor", "$schema")}

    return _edited(schema, lambda part, together: move(part), together=False)


def _close(part: dict[str, Any], together: bool) -> dict[str, Any]:
    if part.get("format") is not None and part["format"] not in FORMATS:
        part.pop("format")
    combined = together or len(part.get("allOf", ())) > 0 or "$ref" in part
    if "properties" in part and not combined and not any(key in part for key in _OPENING):
        part["additionalProperties"] = False
    return part


def _edited(schema: Any, edit: Edit, *, together: bool) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    parts = schema.get("allOf", ())
    several = isinstance(parts, list) and len(parts) + ("properties" in schema) > 1
    shared = _shared(schema)
    edited: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _ONE:
            edited[key] = _edited(value, edit, together=False)
        elif key in _LISTS and isinstance(value, list):
            inner = (together or several) if key == "allOf" else together
            edited[key] = [_edited(part, edit, together=inner) for part in value]
        elif key in _MAPS and isinstance(value, Mapping):
            edited[key] = {
                name: _edited(part, edit, together=f"#/{key}/{name}" in shared) for name, part in value.items()
            }
        else:
            edited[key] = value
    return edit(edited, together)


def _shared(schema: Any) -> frozenset[str]:
    """References that stand beside others in an `allOf` anywhere below."""
    found: set[str] = set()

    def look(value: Any) -> None:
        if isinstance(value, Mapping):
            parts = value.get("allOf")
            if isinstance(parts, list) and len(parts) + ("properties" in value) > 1:
                references = (part.get("$ref") for part in parts if isinstance(part, Mapping))
                found.update(reference for reference in references if isinstance(reference, str))
            for each in value.values():
                look(each)
        elif isinstance(value, list):
            for each in value:
                look(each)

    look(schema)
    return frozenset(found)


def _anchors(schema: Any, place: str) -> list[tuple[str, str]]:
    """`#name` -> where the part with this anchor stands."""
    if not isinstance(schema, Mapping):
        return []
    found = [(f"#{schema['$anchor']}", place)] if isinstance(schema.get("$anchor"), str) else []
    for key in _ONE:
        found += _anchors(schema.get(key), f"{place}/{key}")
    for key in _LISTS:
        parts = schema.get(key)
        for at, part in enumerate(parts if isinstance(parts, list) else ()):
            found += _anchors(part, f"{place}/{key}/{at}")
    for key in _MAPS:
        named = schema.get(key)
        for name, part in (named if isinstance(named, Mapping) else {}).items():
            found += _anchors(part, f"{place}/{key}/{name.replace('~', '~0').replace('/', '~1')}")
    return found
