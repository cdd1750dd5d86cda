"""Where ranks differ: what each works and waits, and whose work the step waits for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.program.critical import critical_path
from simulator.program.prices import ACCOUNTS
from simulator.program.program import COMPUTE
from simulator.report.prediction import Prediction
from simulator.report.table import Section, Table, percent
from simulator.report.window import cut_trace, step_window
from simulator.units import show

__all__ = ["critical_seconds", "ranks_section", "straggler"]

_MOST = 16
_WAITS = ("dp", "pp", "bubble")


def critical_seconds(prediction: Prediction) -> NDArray[np.float64]:
    """Return [ranks] seconds that each rank computes on the longest chain of work and messages of one step.

    Where steps run into each other, the chain is that of all of them, and what lies in the window of one step counts.
    """
    p = prediction
    path = critical_path(p.program, p.prices, p.trace)
    rows = path[p.program.kind[path] == COMPUTE]
    step, window = cut_trace(p.program, p.trace), step_window(p.program, p.trace)
    seconds = (step.end[rows] - step.start[rows]) / window.steps
    out = np.zeros(p.program.ranks)
    np.add.at(out, p.program.rank[rows], seconds)
    return out


def straggler(prediction: Prediction) -> int:
    """Return the rank whose work is the largest part of the longest chain."""
    return int(np.argmax(critical_seconds(prediction)))


def ranks_section(prediction: Prediction) -> Section:
    """Return a line per rank of the program: its GPUs, what it works, what it waits, its part of the longest chain."""
    p = prediction
    waits = p.rank_breakdown[:, [ACCOUNTS.index(name) for name in _WAITS]].sum(axis=1)
    chain = critical_seconds(p)
    slowest = int(np.argmax(chain))
    shown = sorted({slowest, *np.argsort(-chain, kind="stable")[:_MOST].tolist()})
    rows = tuple(
        (
            str(rank),
            str(p.ranks[rank].pipeline_rank),
            p.ranks[rank].replicas,
            " and ".join(p.ranks[rank].gpus),
            ",".join(map(str, p.ranks[rank].parts)),
            show(p.step_time - float(waits[rank]), "s"),
            percent(float(waits[rank]) / p.step_time),
            percent(float(chain[rank]) / p.step_time),
        )
        for rank in shown
    )
    kind = p.ranks[slowest]
    more = len(p.ranks) - len(shown)
    below = [f"who sets the pace: rank {slowest} (pipeline rank {kind.pipeline_rank} of replicas {kind.replicas})"]
    below += [f"part {number}: {text}" for number, text in enumerate(p.provenance.get("parts", ()))]
    below += [f"... and {more} ranks more"] if more else []
    return Section(
        title="ranks that differ",
        table=Table(
            headings=("rank", "pipeline", "replicas", "gpu", "parts", "works", "waits", "of the longest chain"),
            rows=rows,
            left=(2, 3, 4),
        ),
        below=tuple(below),
    )
