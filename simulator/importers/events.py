"""A long list inside a JSON file, one table after the other, so that a large one is never whole in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from simulator.errors import SpecError
from simulator.importers.document import Document
from simulator.importers.imported import brief

__all__ = ["events_of"]

_GAP = re.compile(r"[\s,]*")


def events_of(document: Document, key: str, most: int) -> Iterator[dict[str, object]]:
    """Yield the tables of the list under a key, or of the list that the file is.

    Raises:
        SpecError: no JSON, no end, something else than tables, or more of them than `most`.
    """
    text = document.text
    start = text.find("[", max(0, text.find(f'"{key}"')))
    decoder, place = json.JSONDecoder(), start + 1
    for _ in range(most):
        gap = _GAP.match(text, place)
        place = gap.end() if gap else place
        if start < 0 or place >= len(text):
            raise SpecError(f"{document.place}: its list of {key} has no end: the file was cut off, or is no trace")
        if text[place] == "]":
            return
        try:
            event, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            line = text.count("\n", 0, place) + 1
            raise SpecError(f"{document.place}, line {line}: no JSON ({brief(error)})") from None
        if not isinstance(event, dict):
            raise SpecError(f"{document.place}: each of {key} is a table, but one is {brief(event)}")
        yield event
    raise SpecError(f"{document.place}: has more than {most:,} {key}. Way out: trace fewer steps")
