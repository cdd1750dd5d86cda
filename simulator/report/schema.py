"""The version of the JSON answers: it changes when a key is taken away or means something else; keys that are added do not change it."""

from __future__ import annotations

__all__ = ["SCHEMA_VERSION"]

SCHEMA_VERSION = 1
