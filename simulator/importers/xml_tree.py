"""XML as elements with their lines; documents with a DOCTYPE or entities are refused, and so is what is nested too deeply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from simulator.errors import SpecError
from simulator.importers.document import MOST_TREE, Document
from simulator.importers.trees import MOST_DEPTH

__all__ = ["Element", "parse_xml"]


@dataclass(slots=True)
class Element:
    """An element: its name, attributes, line and children."""

    name: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def every(self) -> Iterator[Element]:
        """Yield this element and all inside it, in the order of the file."""
        stack = [self]
        while stack:
            element = stack.pop()
            yield element
            stack += reversed(element.children)

    def all(self, name: str) -> list[Element]:
        """Return all elements of a name inside this one."""
        return [element for element in self.every() if element.name == name]


def parse_xml(document: Document) -> Element:
    """Return the root of an XML document.

    Raises:
        SpecError: it is no XML, has a DOCTYPE, is too large or nested too deeply.
    """
    if len(document.data) > MOST_TREE:
        raise SpecError(f"{document.place}: is larger than 1 MiB; expected a small XML file")
    parser = expat.ParserCreate()
    top = Element("", {}, 0)
    stack = [top]

    def start(name: str, attributes: dict[str, str]) -> None:
        if len(stack) > MOST_DEPTH:
            raise SpecError(f"{document.line_of(parser.CurrentLineNumber)}: nested more than {MOST_DEPTH} deep")
        element = Element(name, attributes, parser.CurrentLineNumber)
        stack[-1].children.append(element)
        stack.append(element)

    def refuse(*_: Any) -> None:
        raise SpecError(f"{document.line_of(parser.CurrentLineNumber)}: a DOCTYPE or entity is not read; leave it out")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda name: stack.pop()
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(document.data, True)
    except expat.ExpatError as error:
        raise SpecError(f"{document.line_of(error.lineno)}: is no XML: {expat.ErrorString(error.code)}") from None
    return top.children[0]
