"""docs/frames.md, made from the declarations of columns: `python -m tests.golden.frames_page`."""

from __future__ import annotations

from simulator import load_job, simulate_job
from simulator.report.columns import COLUMNS
from tests.package_sources import ROOT

__all__ = ["PAGE", "text"]

PAGE = ROOT / "docs" / "frames.md"
HEAD = """# Answers as tables

Made by `python -m tests.golden.frames_page`; the columns from `simulator/report/columns.py`, where each is declared once and means the same
in every table.

Every answer has tables. `to_frame()` gives the first as a pandas frame, `to_frame("memory")` another; a notebook shows the first by itself.
`frame.attrs["units"]` has the unit of every column that has one. Numbers are in SI units; where there is none the cell is empty.

| answer of | tables, the first one first |
|---|---|
| `simulate`, `simulate_job` | `step`, `breakdown` (a row per rank), `memory` (a row per rank) |
| `simulator.studies.comparison.compare` | `variants`, `breakdown` |
| `simulator.studies.scaling.scaling` | `points` |
| `simulator.studies.latency_sweep.latency_sweep` | `points`, `refused` |
| `simulator.studies.schedule_figures.schedule_figures` | `schedule`, `ranks`, `actions` |
| `simulator.studies.automatic_schedule.automatic_schedule` | `schedule`, `actions` |
| `simulator.search.search.search` | `best`, `plans`, `pareto`, `choices` |
| `simulator.studies.sweep.run_sweep` | `points` |
| `simulator.studies.collective_figures.collective_figures` | `collective` |
| `simulator.accuracy.validate.Validation` | `rows`, `groups` |
| `simulator.goodput.study.goodput` | `runs`, `interruptions`, `lost` |

```python
>>> import simulator
>>> prediction = simulator.simulate_job(simulator.load_job("gpt3_175b"))
>>> prediction.to_frame()[["step_time_s", "low_s", "high_s", "mfu"]].round(2)
{step}
>>> memory = prediction.to_frame("memory")
>>> memory.attrs["units"]["weights_bytes"], memory.peak_memory_bytes.idxmax()
('B', 0)
>>> breakdown = prediction.to_frame("breakdown").set_index("rank").filter(like="_s").drop(columns="step_time_s")
>>> bool(abs(breakdown.sum(axis=1) - prediction.step_time).max() < 1e-9)
True

```

On the command line `-o OUT.csv` or `-o OUT.parquet` writes the table beside what is printed: `dtsim run`, `compare`, `collective`,
`goodput`, `validate`; `dtsim search -o plans.csv` writes every plan that was simulated. Parquet keeps the units in the file's metadata
(`pandas.read_parquet(...).attrs`).

## Columns

A column with a dot, such as `plan.tensor_parallel`, is a setting of the job ([options.md](options.md)). Unit 1 is a fraction; that of
a schedule alone is that of the times it was given.

| column | unit | what |
|---|---|---|
"""


def text() -> str:
    """Return the whole page."""
    step = simulate_job(load_job("gpt3_175b")).to_frame()[["step_time_s", "low_s", "high_s", "mfu"]].round(2)
    rows = (
        f"| `{name}` | {column.unit} | {column.doc.replace('|', chr(92) + '|')} |" for name, column in COLUMNS.items()
    )
    return HEAD.replace("{step}", str(step)) + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text())
