"""What was imported, as a job file and as text to read."""

from __future__ import annotations

from pathlib import Path

from simulator.errors import SpecError
from simulator.importers.imported import Findings, brief
from simulator.importers.jobs import job_data
from simulator.report.table import Section, Table
from simulator.specs import write_text
from simulator.specs.toml_text import toml_text, toml_value

__all__ = ["job_text", "sections_of", "write_files"]


def job_text(imported: Findings, name: str) -> str:
    """Return a commented job file; what the files left open stands in it as comments."""
    data = job_data(imported, name)
    why = {a.field: a.why for a in imported.assumed}
    lines = [
        f"# Imported from {imported.source_format}.  Run it with: dtsim run THIS_FILE",
        f"name = {toml_value(name)}",
    ]
    for table in ("workload", "model", "plan", "cluster"):
        fields = data.get(table, {})
        if table == "model" and not fields:
            continue
        lines += ["", f"[{table}]"]
        if table == "cluster" and "name" not in fields:
            lines.append('# name = "..."  # the files do not say: dtsim list clusters')
        if table == "workload" and "model" not in data:
            lines.append('# model = "..."  # the files do not say: dtsim list models')
        for key, value in fields.items():
            note = why.get(f"{table}.{key}")
            lines.append(f"{key} = {toml_value(value)}" + (f"  # assumed: {note}" if note else ""))
    if imported.not_understood:
        lines += ["", "# Not understood:"]
        lines += [f"#   {line.place}: {line.text}" for line in imported.not_understood]
    return "\n".join(lines) + "\n"


def sections_of(imported: Findings) -> list[Section]:
    """Return what was imported, to read."""
    assumed = {a.field: a.why for a in imported.assumed}
    places = {read.field: read.place for read in imported.read}
    rows = []
    for table in ("workload", "model", "plan", "cluster"):
        for key, value in imported.tables.get(table, {}).items():
            name = f"{table}.{key}"
            origin = f"assumed: {assumed[name]}" if name in assumed else places.get(name, "")
            rows.append((name, brief(value), brief(origin)))
    fields = Table(headings=("field", "value", "where it stands"), rows=tuple(rows), left=(0, 1, 2))
    found = [Section(title=f"{imported.source_format}: {len(rows)} fields of a job", table=fields if rows else None)]
    if imported.steps is not None:
        found.append(imported.steps.section())
    if imported.operations is not None:
        found.append(imported.operations.section())
    other = tuple(
        (a.field, brief(a.value), a.why) for a in imported.assumed if a.field not in places and "." not in a.field
    )
    if other:
        found.append(Section(title="also assumed", table=Table(headings=("", "", ""), rows=other, left=(0, 1, 2))))
    for title, lines in (("not understood", imported.not_understood), ("without effect", imported.no_effect)):
        table_rows = tuple((line.place, line.text) for line in lines)
        shown = Table(headings=("", ""), rows=table_rows, left=(0, 1)) if table_rows else None
        found.append(Section(title=f"{title} ({len(lines)})", table=shown))
    return found


def write_files(imported: Findings) -> list[Path]:
    """Write the data files that come with what was imported (a node, a cluster) under the working directory; return them.

    Raises:
        SpecError: one is there already.
    """
    written = []
    for kind, name, content in imported.files:
        path = Path("hardware_specs", kind, f"{name}.toml")
        if path.exists():
            raise SpecError(f"{path}: exists already. Way out: move it away, or work in another folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, toml_text(content))
        written.append(path)
    return written
