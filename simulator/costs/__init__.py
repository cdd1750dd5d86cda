"""Costs: seconds for work, with the class and spread of every price."""

from __future__ import annotations

__all__: list[str] = []
