"""The table of a model in a Hugging Face file, asked key by key, with messages that name the key."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from simulator.errors import SpecError

__all__ = ["WAY_OUT", "Config"]


WAY_OUT = "Way out: dtsim init with a named model, then change its numbers in a table [model]"


@dataclass(frozen=True, slots=True)
class Config:
    """The table of a model in a parsed file, where it came from for messages, and which of its keys were asked for."""

    kind: str
    path: str
    data: dict[str, Any]
    seen: set[str] = field(default_factory=set)
    parts: dict[str, Config] = field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value as it stands in the file."""
        self.seen.add(key)
        return self.data.get(key, default)

    def part(self, key: str) -> Config:
        """Return a table inside this one.

        Raises:
            SpecError: it is no table.
        """
        value = self.get(key)
        if not isinstance(value, dict):
            raise SpecError(f"{self.path}: {key}: expected a table, got {str(value)[:40]}")
        self.parts[key] = Config(self.kind, f"{self.path}: {key}", value)
        return self.parts[key]

    def whole(self, *keys: str, default: int | None = None) -> int:
        """Return the first of these keys that is there, a whole number above zero; of a list with one for each layer, the one of all.

        Raises:
            SpecError: none is there and there is no default, or it is no such number.
        """
        key = next((k for k in keys if self.get(k) is not None), keys[0])
        value = self.get(key)
        if isinstance(value, list) and value and all(one == value[0] for one in value):
            value = value[0]
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            got = "nothing" if value is None else repr(value)[:40]
            raise SpecError(f"{self.path}: {key}: expected a whole number above zero, got {got}")
        return value

    def count(self, key: str) -> int:
        """Return a whole number that may be absent, null or zero: 0 then."""
        return 0 if self.get(key) in (None, 0) else self.whole(key)

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value.

        Raises:
            SpecError: it is something else.
        """
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise SpecError(f"{self.path}: {key}: expected true or false, got {str(value)[:40]}")
        return value

    def refuse_layers(self, words: Iterable[str], known: Iterable[str]) -> None:
        """Refuse kinds of layers that are not among the known ones.

        Raises:
            SpecError: there is one.
        """
        other = sorted(set(words) - set(known))
        if other:
            raise SpecError(
                f"{self.path}: layer_types: {other[0][:40]!r} is not modelled; known: {', '.join(known)}. {WAY_OUT}"
            )

    def share(self, *keys: str) -> float:
        """Return the first of these keys that is there, a number above zero and at most one; 1 when absent.

        Raises:
            SpecError: it is no such number.
        """
        key = next((k for k in keys if self.get(k) is not None), "")
        value = self.get(key, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise SpecError(f"{self.path}: {key}: expected a number above 0 and at most 1, got {str(value)[:40]}")
        return float(value)

    def words(self, key: str) -> list[str]:
        """Return a list of words; [] when absent.

        Raises:
            SpecError: it is something else.
        """
        value = self.get(key) or []
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise SpecError(f"{self.path}: {key}: expected a list of words, got {str(value)[:40]}")
        return value

    def rotary_scale(self) -> dict[str, float]:
        """Return what YaRN multiplies cosines and sines by (arXiv 2309.00071, section 3.4), as a field of the model; {} without it.

        Raises:
            SpecError: its factor or a scale is no number above zero.
        """
        stated = self.get("rope_parameters") or self.get("rope_scaling")
        if not isinstance(stated, dict) or stated.get("rope_type", stated.get("type")) != "yarn":
            return {}
        said = {
            name: self._positive(stated, name) for name in ("attention_factor", "factor", "mscale", "mscale_all_dim")
        }
        grown = 0.1 * math.log(max(1.0, said["factor"]))
        own = (
            (1.0 + said["mscale"] * grown) / (1.0 + said["mscale_all_dim"] * grown)
            if said["mscale_all_dim"]
            else 1.0 + grown
        )
        scale = round(said["attention_factor"] or own, 4)
        return {} if scale == 1.0 else {"rotary_scale": scale}

    def _positive(self, table: dict[str, object], key: str) -> float:
        """A number above zero; 0 when absent."""
        value = table.get(key)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise SpecError(f"{self.path}: rope_scaling: {key}: expected a number above 0, got {str(value)[:40]}")
        return float(value)
