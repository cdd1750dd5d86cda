"""Files of other programs -> jobs of ours: models, plans, clusters, measured steps.

One format is one file here (`base.Importer`), found by name.  What a file says becomes fields of a job; what it leaves to its
program's defaults is listed as assumed; what is not understood is listed with its place.  Files are data: nothing in them is run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.registry import Family

if TYPE_CHECKING:
    from simulator.importers.base import Importer

__all__ = ["IMPORTERS"]

IMPORTERS: Family[Importer] = Family("format to import", "simulator.importers", "Importer", "importers")
