"""What the what-if page asks: the lists it offers, the answer to one setting, what a dropped file says, and a schedule alone.

    request (JSON) --answer--> (status, JSON)

Every question goes through `answer`, which runs in a process of its own (`answering.py`) and never raises.  A question that is none is
400, one too large for a page 413.  A plan or an order that cannot be is an answer, with the reason as its `error`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from simulator.errors import PlanError, SimulatorError, SpecError
from simulator.html.controls import (
    Controls,
    RequestError,
    command_line,
    controls_of,
    job_of,
    read_controls,
    request_of,
)
from simulator.html.dropped import read_dropped
from simulator.html.memory_data import memory_data
from simulator.html.report import answer_data, breakdown_data
from simulator.html.schedule_lab import schedule_alone
from simulator.html.step_data import timeline_data
from simulator.job import apply_settings, make_job
from simulator.lowering import resolve
from simulator.report.prediction import Prediction
from simulator.report.schema import json_value
from simulator.schedules import SCHEDULES, Shape
from simulator.schedules.base import Schedule
from simulator.search.quick import quick_search
from simulator.search.search import search
from simulator.search.space import make_space
from simulator.simulation import simulate_job
from simulator.specs import Spec, names
from simulator.specs.toml_text import toml_text
from simulator.studies.training_cost import training_cost
from simulator.units import in_unit
from simulator.workload.precision import PRECISIONS

__all__ = ["ANSWERED", "TOO_LARGE", "WRONG_REQUEST", "answer"]

ANSWERED, WRONG_REQUEST, TOO_LARGE = 200, 400, 413
_MOST_ACTIONS = 150_000
"""Actions of the largest step a page shows; `dtsim run` takes more."""
_SEARCH_SECONDS = 15.0
"""After which a search gives what it has found."""
_SEARCHED = ("data_parallel", "schedule", "chunks_per_rank", "sequence_parallel", "zero_stage")
"""Fields of a plan that are left open for a search, beside those that it ranges over."""
_QUICK = 1
_CHUNKS = (1, 2, 3, 4, 6, 8)


class Dropped(Spec):
    """A file that was dropped on the page, and what stood there."""

    name: Annotated[str, Field(max_length=300)] = ""
    text: Annotated[str, Field(max_length=2**20)]
    controls: dict[str, Any] | None = None


def answer(question: str, data: Any) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON answer to one request.

    Args:
        question: choices, step, read, schedule or best.
        data: the request's body.
    """
    known: Mapping[str, Callable[[Any], dict[str, Any]]] = {
        "choices": lambda _: _choices(),
        "step": _step,
        "read": lambda body: _read(request_of(body, Dropped)),
        "schedule": schedule_alone,
        "best": _best,
    }
    try:
        return ANSWERED, json_value(known[question](data))
    except _TooLarge as error:
        return TOO_LARGE, {"error": str(error)}
    except RequestError as error:
        return WRONG_REQUEST, {"error": str(error)}
    except SimulatorError as error:
        return ANSWERED, {"error": str(error)}
    except (MemoryError, RecursionError, OverflowError):
        return TOO_LARGE, {"error": "this is too large for a page; dtsim run takes larger steps"}


class _TooLarge(PlanError):
    """A step that would hold up the page."""


_WITH_NUMBER = ("revolve",)
"""Kinds of recompute that need a number which the page does not ask for."""


def _choices() -> dict[str, object]:
    """What the page's lists offer."""
    from simulator.plan.plan import Plan

    def literals(field: str) -> list[str]:
        kinds = getattr(Plan.model_fields[field].annotation, "__args__", ())
        return [word for kind in kinds for word in getattr(kind, "__args__", ()) if isinstance(word, str)]

    schedules = [
        {"name": s.name, "chunks": [v for v in _CHUNKS if _takes(s, Shape(4, 8, v))], "flush": s.flush}
        for s in SCHEDULES
    ]
    wide = sorted(p.name for p in PRECISIONS.values() if p.name == p.compute)
    return {
        "models": sorted(names("models")),
        "clusters": sorted(names("clusters")),
        "frameworks": sorted(names("frameworks")),
        "schedules": schedules,
        "recompute": [kind for kind in literals("recompute") if kind not in _WITH_NUMBER],
        "attention": literals("attention"),
        "precision": wide + [p.name for p in PRECISIONS.values() if p.quantises],
        "start": Controls().model_dump(),
    }


def _takes(schedule: Schedule, shape: Shape) -> bool:
    try:
        schedule.check(shape)
    except PlanError:
        return False
    return True


def _step(body: Any) -> dict[str, object]:
    """One setting predicted."""
    controls = read_controls(body)
    _refuse_large(controls.pipeline_parallel, controls.microbatches, controls.chunks_per_rank)
    data = job_of(controls)
    job = make_job(data, "request", controls.name)
    resolved = resolve(job.workload, job.plan, job.cluster.world_size, "request")
    _refuse_large(resolved.pipeline_parallel, resolved.microbatches, resolved.chunks_per_rank)
    prediction = simulate_job(job)
    timeline = timeline_data(prediction, _QUICK)
    ranks = [entry["rank"] for entry in timeline["ranks"]]
    price = controls.price or job.cluster.price_per_gpu_hour
    facts, node = prediction.provenance, job.cluster.node
    return {
        "answer": answer_data(prediction),
        "timeline": timeline,
        "memory": memory_data(prediction, ranks, _QUICK),
        "breakdown": breakdown_data(prediction, ranks),
        "money": _money(prediction, controls, price),
        "facts": {
            "gpu": job.cluster.gpu.name,
            "node": node.gpus,
            "replicas": facts["data_parallel"],
            "microbatches": facts["microbatches"],
            "batch": job.workload.global_batch_size,
            "schedule": facts["schedule"],
            "experts": job.workload.model.experts,
            "layers": job.workload.model.depth,
            "kind": facts["kind_of_run"],
            "runs": facts["runs_of_this_kind"],
        },
        "assumptions": facts["assumptions"],
        "command": command_line(data),
        "toml": toml_text(data),
    }


def _best(body: Any) -> dict[str, object]:
    """The controls of the best plan for a setting's model, cluster, batch and code, and what was searched."""
    data = job_of(read_controls(body))
    for field in _SEARCHED:
        data["plan"].pop(field, None)
    job = make_job(data, "request", "what if")
    started = time.monotonic()
    first = quick_search(job)  # so that a slow machine has an answer, too
    left = max(1.0, _SEARCH_SECONDS - (time.monotonic() - started))
    found = search(make_space(job, {}, {}), deadline=left)
    plans = [*found.best[:1], *first.best[:1]]
    if not plans:
        why = "fits" if found.proven else f"fits in {_SEARCH_SECONDS:g} s"
        raise PlanError(f"no plan was found that {why}: {found.counts}. Way out: more GPUs, or a smaller batch")
    best = min(plans, key=lambda plan: plan.step_time)
    proof = "none is better" if found.proven else f"stopped after {found.seconds:.0f} s, so a better one may be left"
    return {
        "controls": controls_of(apply_settings(data, best.settings), "the best plan"),
        "found": f"{found.space.size:,} plans: {found.counts}; {len(found.ties)} within the band of the best; {proof}",
        "step_time_s": best.step_time,
        "fit_probability": best.fit_probability,
    }


def _refuse_large(ranks: int, microbatches: int, chunks: int) -> None:
    actions = 2 * ranks * microbatches * chunks
    if actions > _MOST_ACTIONS:
        raise _TooLarge(
            f"a page shows steps of up to {_MOST_ACTIONS:,} pipeline actions, but 2 x {ranks:,} ranks x {microbatches:,} microbatches "
            f"x {chunks:,} chunks = {actions:,}. Way out: fewer microbatches, or dtsim run, which takes more"
        )


def _money(prediction: Prediction, controls: Controls, price: float | None) -> dict[str, object]:
    """Dollars of a step and of the run that was asked for, and its days."""
    hours = in_unit(prediction.step_time, "h", "s") * prediction.world_size
    out: dict[str, object] = {"price": price, "step": None if price is None else hours * price}
    per_token = hours / prediction.tokens
    out["gpu_hours_per_token"] = per_token
    if controls.tokens:
        out["run"] = training_cost(prediction, controls.tokens, price).to_dict()
    return out


def _read(dropped: Dropped) -> dict[str, Any]:
    name = Path(dropped.name.replace("\\", "/")).name or "the file"
    page = None if dropped.controls is None else read_controls(dropped.controls)
    try:
        return {"controls": controls_of(read_dropped(name, dropped.text, page), name)}
    except RequestError as error:  # the request is one; the file in it is not
        raise SpecError(str(error)) from None
