"""What every importer can do: tell its own files from others, and read one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from simulator.importers.document import Document
from simulator.importers.imported import Findings

__all__ = ["Importer"]


class Importer(ABC):
    """One format of another program.

    Attributes:
        name: as it stands in `source_format`.
        title: for people.
        aliases: other names.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def recognises(self, document: Document) -> int:
        """Return how sure it is that the file is of this format: 0 (no) to 3 (certainly); 4 where its marks stand
        beside another's.  It must not raise."""

    @abstractmethod
    def read(self, document: Document) -> Findings:
        """Return what the file says.

        Raises:
            SpecError: the file is of this format but wrong; the message says where.
        """
