"""The command line `dtsim`; see `simulator.cli.app`."""

from __future__ import annotations

from simulator.cli.app import VERBS, main

__all__ = ["VERBS", "main"]
