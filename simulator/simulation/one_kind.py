"""A step of one kind: resolved plan --lower--> Program --price(cluster)--> Prices --run--> Trace --measure--> Prediction."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from simulator.costs.ranks import price_ranks
from simulator.engine import run
from simulator.hardware.cluster import Cluster
from simulator.hardware.parts import Part
from simulator.lowering import ResolvedPlan, lower_resolved
from simulator.lowering.joined import stage_facts
from simulator.lowering.kept_places import kept_places
from simulator.program.program import Program
from simulator.program.spec import verify
from simulator.report.prediction import Prediction, measure
from simulator.report.served_turns import served_turns
from simulator.workload.workload import Workload

__all__ = ["simulate_kind"]


def simulate_kind(
    workload: Workload, resolved: ResolvedPlan, cluster: Cluster, engine: str, noted: tuple[str, ...], fold: bool
) -> Prediction:
    """Return the prediction of a plan's step of one kind.

    Args:
        noted: assumptions, for the provenance.
        fold: as of `simulate`.
    """
    resolved = _turns(workload, resolved, cluster, engine, fold)
    program = lower_resolved(workload, resolved)
    verify(program)
    priced = price_ranks(program, cluster, fold)
    trace = run(priced.program, priced.prices, engine)
    facts = _provenance(workload, resolved, priced.cluster, noted, cluster.parts)
    places = functools.partial(_places, workload, resolved, program)
    return measure(trace, priced.program, priced.prices, workload, priced.cluster, facts, priced.ranks, places)


def _places(workload: Workload, resolved: ResolvedPlan, program: Program, rank: int) -> float:
    """Bytes of a rank's memory in places of no use: of an unfolded rank as of the pipeline's."""
    rank %= resolved.pipeline_parallel if not resolved.stages else program.ranks
    tensors = program.resident[rank].tensors if program.resident else ()
    stands = sum(t.bytes for t in tensors if t.category not in ("context", "fragmentation"))
    states = sum(t.bytes for t in tensors if t.category == "optimizer_states")
    return kept_places(workload, resolved, rank, stands, states)


def _turns(workload: Workload, resolved: ResolvedPlan, cluster: Cluster, engine: str, fold: bool) -> ResolvedPlan:
    """Say in what turns layers go to servers where the one goes first that is needed first: as in a step in which they go as they are
    made."""
    if not (resolved.on_servers and resolved.exchange_terms.priority) or resolved.served_turns:
        return resolved
    terms = replace(resolved.exchange_terms, priority=False)
    each = simulate_kind(workload, replace(resolved, exchange_terms=terms), cluster, engine, (), fold)
    return replace(
        resolved, served_turns=served_turns(each.program, each.prices, each.trace, resolved.pipeline_parallel)
    )


def _exchange(resolved: ResolvedPlan) -> dict[str, Any]:
    """What the provenance says of an exchange of which a step time does not tell all."""
    exchange = resolved.exchange
    if not exchange.unsaid:
        return {}
    return {"gradient_exchange": exchange.name, "unsaid": exchange.unsaid}


def _provenance(
    workload: Workload, resolved: ResolvedPlan, cluster: Cluster, assumptions: tuple[str, ...], parts: tuple[Part, ...]
) -> dict[str, object]:
    from simulator import __version__

    schedule = resolved.schedule
    stale = {} if schedule.flush else {"staleness": (schedule.weight_versions(resolved.shape) - 1).tolist()}
    return (
        {
            "version": __version__,
            "cluster": cluster.name,
            "gpu": cluster.gpu.name,
            "framework": resolved.framework.name,
            "schedule": resolved.schedule.name,
            "microbatches": resolved.microbatches,
            "data_parallel": resolved.data_parallel,
            "degrees": {
                "tp": resolved.tensor_parallel,
                "cp": resolved.context_parallel,
                "dp": resolved.data_parallel,
                "pp": resolved.pipeline_parallel,
                "ep": resolved.expert_parallel,
            },
            "recompute": resolved.recomputes.text,
            "attention": resolved.style.attention,
            "assumptions": list(assumptions),
        }
        | stale
        | _exchange(resolved)
        | ({"parts": [part.text for part in parts]} if parts else {})
        | ({"stages": stage_facts(workload, resolved)} if resolved.stages else {})
    )
