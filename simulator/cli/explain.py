"""dtsim explain: why a step takes as long as it does, and which change helps most."""

from __future__ import annotations

from simulator.cli.options import (
    ClusterOption,
    EngineOption,
    JobArgument,
    JsonOption,
    ModelOption,
    SetOption,
    read_job,
    with_plan_of_run,
)
from simulator.cli.output import note, print_json, print_sections, tell_compiling

__all__ = ["command"]


def command(
    job: JobArgument = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    settings: SetOption = None,
    engine: EngineOption = "compiled",
    as_json: JsonOption = False,
) -> None:
    """Say where the time goes, what binds, what fills memory, and which single change of the plan helps most."""
    from simulator.simulation import simulate_job
    from simulator.studies.explanation import explain
    from simulator.studies.stragglers import find_stragglers

    the_job = read_job(job, model, cluster, settings)
    tell_compiling()
    the_job = with_plan_of_run(the_job, job, model, cluster)
    prediction = simulate_job(the_job, engine)
    note("simulating the neighbouring plans ...")
    explanation = explain(the_job, prediction, engine, search=True)
    stragglers = find_stragglers(the_job, prediction, engine)
    if as_json:
        print_json(explanation.to_dict() | ({"stragglers": stragglers.to_dict()} if stragglers else {}), "explain")
    else:
        head, *rest = explanation.sections()
        print_sections([head, *([stragglers.section()] if stragglers else []), *rest])
