"""A validation as text: errors per group, the worst rows with their largest terms, and why rows were not predicted."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from statistics import median

from simulator.accuracy.scores import OUT_OF_MEMORY, Outcome, Scores, band_scores, score
from simulator.accuracy.validate import NOT_FITTED, Validation
from simulator.report.bands import HEADINGS
from simulator.report.table import Section, Table, percent

__all__ = ["describe_validation", "markdown_table"]

_WIDEST = 44
_MOST_WORST = 8
_MOST_REASONS = 25
_MOST_RULES = 25


def describe_validation(validation: Validation) -> list[Section]:
    """Return the sections that `dtsim validate` prints."""
    sections = [_errors(validation)]
    if validation.not_read:
        columns = tuple((name, f"{meant}?" if meant else "-") for name, meant in validation.not_read.items())
        sections.append(
            Section(
                title="Columns that nothing is read from",
                table=Table(headings=("column", "meant"), rows=columns, left=(0, 1)),
                below=("docs/data_files.md says which are read and what they hold",),
            )
        )
    bands = _bands(validation.outcomes)
    if bands.rows:
        sections.append(Section(title="Bands, by what they were made for", table=bands))
    worst = _worst(validation.outcomes)
    if worst.rows:
        sections.append(Section(title="Farthest off", table=worst))
    verdicts = validation.summary.out_of_memory
    if any(verdicts[key] for key in ("tp", "fp", "fn", "tn")):
        sections.append(Section(title="Out of memory", table=_verdicts(validation)))
    for title, counted in (("Not predicted", _reasons(validation.outcomes)), ("Assumed", _rules(validation.outcomes))):
        if counted.rows:
            sections.append(Section(title=title, table=counted))
    return sections


def markdown_table(validation: Validation) -> str:
    """Return errors per group as a Markdown table: what the README shows.

    Errors are those of the predicted rows; how many were not is in the column beside them.
    """
    lines = [
        "| source | runs | predicted | median error | mean | bias | rank correlation | inside the 80 % band |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    medians = []
    for name in validation.by_group:
        mine = [o for o in validation.outcomes if o.group == name and o.quantity != OUT_OF_MEMORY]
        done = [o for o in mine if o.predicted is not None and o.error is not None]
        counted = [o for o in mine if o.counts]
        if not done:
            continue
        s = score(done)
        medians.append(s.median_ape or 0.0)
        cells = (
            *(_percent(x) for x in (s.median_ape, s.mape, s.bias)),
            "" if s.spearman is None else f"{s.spearman:.2f}",
            "" if s.band_coverage is None else percent(s.band_coverage, 0),
        )
        lines.append(f"| {name} | {len(counted)} | {len(done)} | {' | '.join(cells)} |")
    total = [o for o in validation.outcomes if o.counts and o.quantity != OUT_OF_MEMORY]
    done = [o for o in total if o.predicted is not None and o.error is not None]
    s = score(done)
    middle = _percent(median(medians)) if medians else "-"
    lines.append(
        f"| **all** (median over sources of the medians: {middle}) | {len(total)} | {len(done)} | {_percent(s.median_ape)} | "
        f"{_percent(s.mape)} | {_percent(s.bias)} | {'' if s.spearman is None else f'{s.spearman:.2f}'} | "
        f"{'' if s.band_coverage is None else percent(s.band_coverage, 0)} |"
    )
    return "\n".join(lines)


def _errors(validation: Validation) -> Section:
    heads = ("group", "rows", "predicted", "median", "mean", "bias", "p90", "max", "rank corr.", "in band", "in sample")
    groups = {name: s for name, s in validation.by_group.items() if s.n}
    rows = [_scores(name, s) for name, s in groups.items()]
    rows.append(_scores("all", validation.summary))
    middle = validation.summary.median_over_groups
    below = (
        f"Median over groups of their median error: {_percent(middle)}. Rows not predicted count as 100 %.",
        *((NOT_FITTED + ".",) if validation.table.kind == "runs" else ()),
        *(("Each band was made without its own source.",) if validation.left_out else ()),
        *(() if validation.complete else ("Interrupted: these are the rows done so far.",)),
    )
    return Section(
        title=f"Errors: {validation.table.place}", table=Table(headings=heads, rows=tuple(rows)), below=below
    )


def _scores(name: str, s: Scores) -> tuple[str, ...]:
    return (
        _short(name),
        str(s.n),
        str(s.n_predicted),
        *(_percent(x) for x in (s.median_ape, s.mape, s.bias, s.p90_ape, s.max_ape)),
        "-" if s.spearman is None else f"{s.spearman:.2f}",
        "-" if s.band_coverage is None else percent(s.band_coverage, 0),
        "yes" if s.in_sample else "no",
    )


def _short(name: str) -> str:
    return name if len(name) <= _WIDEST else name[: _WIDEST - 1] + "…"


def _percent(value: float | None) -> str:
    return "-" if value is None else percent(value)


def _bands(outcomes: Sequence[Outcome]) -> Table:
    return Table(headings=HEADINGS, rows=tuple(scores.cells for scores in band_scores(outcomes)), left=(0,))


def _worst(outcomes: Sequence[Outcome]) -> Table:
    far = [o for o in outcomes if o.counts and o.error]
    far.sort(key=lambda o: -abs(o.error or 0.0))
    heads = ("row", "quantity", "measured", "predicted", "error", "largest terms")
    rows = []
    for o in far[:_MOST_WORST]:
        terms = sorted(o.terms, key=lambda term: -term[1])[:3]
        shares = ", ".join(f"{name} {percent(seconds / (o.predicted or 1.0), 0)}" for name, seconds in terms)
        numbers = (f"{o.measured:.4g}", f"{o.predicted:.4g}", percent(o.error or 0.0, signed=True))
        rows.append((o.case_id, o.quantity, *numbers, shares))
    return Table(headings=heads, rows=tuple(rows), left=(0, 1, 5))


def _verdicts(validation: Validation) -> Table:
    heads = ("group", "hit", "false alarm", "missed", "fits", "precision", "recall")
    rows = []
    for name, s in {**validation.by_group, "all": validation.summary}.items():
        v = s.out_of_memory
        if any(v[key] for key in ("tp", "fp", "fn", "tn")):
            shares = ("-" if (part := v[key]) is None else percent(part, 0) for key in ("precision", "recall"))
            rows.append((_short(name), *(str(v[key]) for key in ("tp", "fp", "fn", "tn")), *shares))
    return Table(headings=heads, rows=tuple(rows))


def _cut(text: str, width: int) -> str:
    """Return whole words of it, and a sign where some are missing."""
    return textwrap.shorten(text, width, placeholder=" ...")


def _reasons(outcomes: Sequence[Outcome]) -> Table:
    said = Counter(
        (o.reason, "100 %" if o.counts else "no") for o in outcomes if o.reason and o.quantity != OUT_OF_MEMORY
    )
    rows = tuple((str(n), counts, _cut(reason, 110)) for (reason, counts), n in said.most_common(_MOST_REASONS))
    return Table(headings=("rows", "counts", "because"), rows=rows, left=(2,))


def _rules(outcomes: Sequence[Outcome]) -> Table:
    said = Counter(
        rule for o in outcomes if o.predicted is not None and o.quantity != OUT_OF_MEMORY for rule in o.assumed
    )
    return Table(
        headings=("rows", "rule used"),
        rows=tuple((str(n), _cut(rule, 120)) for rule, n in said.most_common(_MOST_RULES)),
        left=(1,),
    )
