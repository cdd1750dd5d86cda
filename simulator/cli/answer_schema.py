"""How the keys of a JSON answer are declared: a type and a meaning each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.report.schema import SCHEMA_VERSION

__all__ = ["EVERYWHERE", "AnswerSchema", "Key"]

_TYPES: dict[str, dict[str, Any]] = {
    "number": {"type": "number"},
    "whole": {"type": "integer"},
    "text": {"type": "string"},
    "truth": {"type": "boolean"},
    "table": {"type": "object"},
    "list": {"type": "array"},
}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of an answer.

    Args:
        type: number, whole, text, truth, table (a JSON object) or list; with "?" behind it also null.
        doc: what it means.
        always: whether every such answer has it.
    """

    type: str
    doc: str
    always: bool = True

    def schema(self) -> dict[str, Any]:
        """Return it as JSON Schema has it."""
        kind = _TYPES[self.type.rstrip("?")]["type"]
        return {"type": [kind, "null"] if self.type.endswith("?") else kind, "description": self.doc}

    def holds(self, value: Any) -> bool:
        """Return whether a value is of its type."""
        kind = self.type.rstrip("?")
        if value is None:
            return self.type.endswith("?")
        if kind in ("number", "whole"):
            return isinstance(value, int if kind == "whole" else int | float) and not isinstance(value, bool)
        return isinstance(value, {"text": str, "truth": bool, "table": dict, "list": list}[kind])


@dataclass(frozen=True, slots=True)
class AnswerSchema:
    """One kind of answer.

    Args:
        command: what gives it.
        keys: beside those that every answer has.
    """

    command: str
    keys: Mapping[str, Key]


EVERYWHERE = {
    "schema_version": Key("whole", f"{SCHEMA_VERSION}: the meaning of the keys; added keys do not change it"),
    "kind": Key(
        "text", "what answer it is; where a verb asks for a kind (collective, measure, list, show, validate), that one"
    ),
    "provenance": Key(
        "table", "what it rests on: `version` always, then cluster, gpu, engine, calibrations, assumptions, ..."
    ),
}
"""Keys of all answers."""
