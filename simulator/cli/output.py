"""What all verbs share on their way out: JSON, text, notes on standard error."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from simulator.report.table import Section, render_sections

__all__ = ["json_text", "note", "print_json", "print_sections", "warn_if_cold", "wrote"]


def print_json(answer: dict[str, Any]) -> None:
    """Print one JSON object on standard output; numbers that JSON lacks (NaN, infinity) become null."""
    print(json_text(answer))


def json_text(answer: dict[str, Any]) -> str:
    """Return an answer as JSON, with the version where it has no provenance of its own."""
    from simulator import __version__

    return json.dumps(
        _plain({"provenance": {"version": __version__}} | answer), indent=2, allow_nan=False, ensure_ascii=False
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return _plain(value.item()) if hasattr(value, "item") else str(value)


def print_sections(sections: Iterable[Section]) -> None:
    """Print sections as text, headings in bold on a terminal."""
    print(render_sections(sections, bold=sys.stdout.isatty()))


def note(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr)


def wrote(path: str | Path) -> None:
    """Say on standard error which file was written."""
    note(f"wrote {path}")


def warn_if_cold(modules: Iterable[str] = ("report/memory_kernel", "report/breakdown_kernel")) -> None:
    """Say that the engine is about to be compiled, when one of these modules has no compiled code newer than itself."""
    package = Path(__file__).resolve().parent.parent
    for module in modules:
        source = package / f"{module}.py"
        changed = source.stat().st_mtime if source.exists() else 0.0
        if not any(index.stat().st_mtime >= changed for index in _compiled(source)):
            note("compiling the engine once (a few seconds) ...")
            return


def _compiled(source: Path) -> Iterator[Path]:
    """Index files of compiled code: where numba is told to keep them, beside the source, or in the user's cache."""
    told = os.environ.get("NUMBA_CACHE_DIR")
    if told:
        yield from Path(told).rglob(f"{source.stem}.*.nbi")
        return
    yield from (source.parent / "__pycache__").glob(f"{source.stem}.*.nbi")
    yield from (Path.home() / ".cache" / "numba").rglob(f"{source.stem}.*.nbi")
