"""Profiles of other programs -> graphs of costs (`workload.cost_graph`), one format per file.

>>> [reader.name for reader in GRAPH_READERS]
['dnn_partitioning', 'pipedream', 'piper']
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.errors import SpecError, UnknownNameError
from simulator.importers.document import open_document
from simulator.registry import Family
from simulator.specs import data_roots

if TYPE_CHECKING:
    from simulator.importers.cost_graphs.base import GraphReader
    from simulator.workload.cost_graph import CostGraph

__all__ = ["GRAPH_READERS", "graph_files", "read_cost_graph"]

GRAPH_READERS: Family[GraphReader] = Family(
    "format of graphs", "simulator.importers.cost_graphs", "GraphReader", "graph_formats"
)

_ENDINGS = ("txt", "json", "txt.gz", "json.gz")


def graph_files() -> dict[str, Path]:
    """Return name -> file of the graphs in `workloads/graphs`: one in the working directory hides the package's own.

    >>> "vgg16" in graph_files()
    True
    """
    found: dict[str, Path] = {}
    for root in data_roots():
        folder = root / "workloads" / "graphs"
        for file in sorted(os.listdir(folder)) if folder.is_dir() else ():
            name, _, rest = file.partition(".")
            if rest in _ENDINGS:
                found.setdefault(name, folder / file)
    return dict(sorted(found.items()))


def read_cost_graph(path: str | Path) -> CostGraph:
    """Return the graph of a file, or that of a name of `graph_files`; gzip is unpacked.

    Raises:
        SpecError: the file cannot be read, is of no known format, or wrong.
        UnknownNameError: it has no ending and is no name; the nearest known one is offered.
    """
    name = str(path)
    if "." not in name and "/" not in name and os.sep not in name:
        files = graph_files()
        if name not in files:
            raise UnknownNameError("graph", name[:100], files, aliases=())
        path = files[name]
    document = open_document(path)
    for reader in GRAPH_READERS:
        if reader.recognises(document):
            return reader.read(document)
    known = "; ".join(reader.title for reader in GRAPH_READERS)
    raise SpecError(f"{document.place}: is no graph of costs. Known: {known}")
