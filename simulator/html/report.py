"""`dtsim run JOB --report OUT.html`: one step as a page that works offline.

    prediction, job, levers --report_data--> one JSON object --> document with assets/report.js

The page has the timeline and memory to zoom and hover, the breakdown, the critical path, the roofline, the levers, and what
the answer rests on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.errors import PlanError
from simulator.html.memory_data import memory_data
from simulator.html.page import document
from simulator.html.roofline import roofline_data
from simulator.html.step_data import rank_name, timeline_data
from simulator.job import Job
from simulator.program.prices import ACCOUNTS
from simulator.report.prediction import Prediction
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.summary import headline, unseen_words
from simulator.report.table import Section, sections_html
from simulator.specs import write_text
from simulator.studies.explanation import explain, from_peak_to_step, leaving_nodes
from simulator.studies.measured import class_seconds

__all__ = ["SCRIPTS", "answer_data", "breakdown_data", "report_data", "write_report"]

SCRIPTS = ("draw.js", "timeline.js", "memory.js", "charts.js", "report.js")
_SMALL = 9
"""Level of compression of a file that is written once."""
_MOST_TERMS = 8
_MOST_RANKS = 64


def write_report(
    prediction: Prediction,
    job: Job,
    path: str | Path,
    command: str,
    extra: Sequence[Section] = (),
    later: Sequence[Section] = (),
) -> Path:
    """Write the page of one step and return its path.

    Args:
        prediction: what is shown.
        job: what was predicted; its neighbouring plans are simulated for the levers.
        path: file to write.
        command: the command line that gives the same answer.
        extra: what else was asked: a measured step, the price of a training run.
        later: what nobody asked for, such as its power; it stands below the pictures.

    Raises:
        OSError: the file cannot be written.
    """
    data = report_data(prediction, job, command)
    body = '<main id="page"><p>This page needs JavaScript: it draws everything itself.</p></main>\n'
    body += f'<div id="extra" class="sections">{sections_html(extra)}</div>'
    body += f'<div id="later" class="sections">{sections_html(later)}</div>'
    write_text(path, document(f"{job.name}: one training step", body, SCRIPTS, data))
    return Path(path)


def report_data(prediction: Prediction, job: Job, command: str) -> dict[str, Any]:
    """Return all that the page of one step shows."""
    p = prediction
    timeline = timeline_data(p, _SMALL)
    ranks = [entry["rank"] for entry in timeline["ranks"]]
    return {
        "schema_version": SCHEMA_VERSION,
        "title": f"{job.name}: one training step",
        "subtitle": "; ".join(headline(p, job.name).lines[1:]),
        "answer": answer_data(p),
        "timeline": timeline,
        "memory": memory_data(p, ranks, _SMALL),
        "breakdown": breakdown_data(p, ranks),
        "critical": _critical(p),
        "roofline": roofline_data(p, job.cluster),
        "levers": _levers(p, job),
        "trust": _trust(p),
        "origin": _origin(p, job, command),
    }


def answer_data(prediction: Prediction) -> dict[str, object]:
    """Return the figures of the tiles: seconds, bytes, rates."""
    p = prediction
    return {
        "step": p.step_time,
        "low": p.low,
        "high": p.high,
        "peak": p.peak_memory,
        "capacity": p.capacity,
        "fits": p.fits,
        "mfu": p.mfu,
        "hfu": p.hfu,
        "flops": p.model_flops_per_gpu,
        "tokens": p.tokens_per_second_per_gpu * p.world_size,
        "gpus": p.world_size,
        "bubble": p.bubble_fraction,
    }


def breakdown_data(prediction: Prediction, ranks: Sequence[int]) -> dict[str, object]:
    """Return seconds by account, the mean and of these ranks."""
    used = [i for i, name in enumerate(ACCOUNTS) if prediction.breakdown[name] > 0]
    table = prediction.rank_breakdown[:, used]
    return {
        "whole": prediction.step_time,
        "mean": {ACCOUNTS[i]: prediction.breakdown[ACCOUNTS[i]] for i in used},
        "ranks": [[rank_name(prediction, rank), table[rank].tolist()] for rank in ranks[:_MOST_RANKS]],
    }


def _critical(p: Prediction) -> dict[str, Any]:
    return {
        "whole": p.step_time,
        "ladder": list(from_peak_to_step(p)),
        "classes": [(str(which), s) for which, s in class_seconds(p).items()][:_MOST_TERMS],
        "host_bound": p.provenance["host_bound"],
        "leaves": leaving_nodes(p)[:_MOST_TERMS],
    }


def _levers(p: Prediction, job: Job) -> dict[str, object]:
    try:
        explanation = explain(job, p)
    except PlanError as error:
        return {"why_not": str(error), "rows": []}
    rows = [
        {
            "name": trial.change.name,
            "settings": trial.change.settings,
            "seconds": trial.outcome.step_time,
            "bytes": trial.outcome.peak_memory,
            "fits": trial.outcome.fits,
            "beyond": trial.outcome.beyond,
        }
        for trial in explanation.gains
        if trial.outcome is not None
    ]
    return {"best": explanation.best.change.name if explanation.best else None, "rows": rows}


def _trust(p: Prediction) -> dict[str, Any]:
    facts = p.provenance
    terms = sorted(p.spreads(slower=True).items(), key=lambda term: -term[1])[:_MOST_TERMS]
    return {
        "kind": facts["kind_of_run"],
        "runs": facts["runs_of_this_kind"],
        "unseen": unseen_words(facts),
        "terms": [(str(term), sigma) for term, sigma in terms],
        "calibrated": facts["calibration"]["calibrated"],
        "uncalibrated": facts["calibration"]["uncalibrated"],
    }


def _origin(p: Prediction, job: Job, command: str) -> dict[str, Any]:
    workload, cluster = job.workload, job.cluster
    settings = [("model", workload.model.name), ("sequence length", f"{workload.sequence_length:,} tokens")]
    settings += [("global batch", f"{workload.global_batch_size:,} sequences"), ("precision", workload.precision)]
    settings += [("cluster", f"{cluster.world_size:,} x {cluster.gpu.name} of {cluster.name}")]
    settings += [(name, _words(value)) for name, value in job.plan.model_dump(exclude_unset=True).items()]
    facts = {key: value for key, value in p.provenance.items() if key != "assumptions" and value not in ({}, [], ())}
    return {
        "assumptions": list(p.provenance.get("assumptions", ())),
        "job": [(name, text) for name, text in settings if text != "None"],
        "command": command,
        "provenance": [(name.replace("_", " "), _words(value)) for name, value in facts.items()],
    }


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_words(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
