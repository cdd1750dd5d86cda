"""docs/options.md, made from the declarations of a plan's choices: `python -m tests.golden.options_page`."""

from __future__ import annotations

from simulator.options.page import page
from simulator.plan.plan import Plan
from tests.package_sources import ROOT

__all__ = ["PAGE", "text"]

PAGE = ROOT / "docs" / "options.md"
HEAD = """# What a plan can say

Made by `python -m tests.golden.options_page` from `simulator/plan/plan.py`, where every choice is declared; `dtsim show option NAME`
prints one.

A choice goes into `[plan]` of a job, `--set plan.NAME=VALUE`, or `simulator.Plan(NAME=VALUE)`.  One that is left out takes its default;
one that could have no effect is refused with the reason: under "matters with" stands what it needs.  A bare name there is another choice
that must be made; `model`, `schedule` and `precision` are what the job names; `microbatches` are those of a step on each replica,
`copies` those of the weights (replicas, and lanes of a schedule), `axes` those of the mesh with several ranks, `chunks` those of the
model over all pipeline ranks, `turns` microbatches times pipeline ranks.

"""


def text() -> str:
    """Return the whole page."""
    return HEAD + page(Plan)


if __name__ == "__main__":
    PAGE.write_text(text())
