"""What every reader of graphs can do: tell its own files from others, and read one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from simulator.importers.document import Document
from simulator.workload.cost_graph import CostGraph

__all__ = ["GraphReader"]


class GraphReader(ABC):
    """One format of another program.

    Attributes:
        name: for tests and messages.
        title: for people.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    @abstractmethod
    def recognises(self, document: Document) -> bool:
        """Return whether the file is of this format; it must not raise."""

    @abstractmethod
    def read(self, document: Document) -> CostGraph:
        """Return the graph.

        Raises:
            SpecError: the file is of this format but wrong; the message says where.
        """
