"""dtsim run: one training step predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.options import (
    ClusterOption,
    EngineOption,
    JobArgument,
    JsonOption,
    ModelOption,
    SetOption,
    quantity,
    read_job,
)
from simulator.cli.output import note, print_json, print_sections, warn_if_cold, wrote

if TYPE_CHECKING:
    from simulator.job import Job
    from simulator.report.prediction import Prediction
    from simulator.report.table import Section

__all__ = ["command"]


def command(
    job: JobArgument = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    settings: SetOption = None,
    engine: EngineOption = "compiled",
    as_json: JsonOption = False,
    trace: Annotated[str | None, typer.Option(metavar="OUT.json.gz", help="Write a trace for ui.perfetto.dev.")] = None,
    plot: Annotated[str | None, typer.Option(metavar="OUT.png", help="Draw timeline and memory.")] = None,
    report: Annotated[
        str | None, typer.Option(metavar="OUT.html", help="Write a page with tables and picture.")
    ] = None,
    measured: Annotated[str | None, typer.Option(metavar="TIME", help="A measured step time, such as 2.31s.")] = None,
    measured_rate: Annotated[
        str | None, typer.Option("--measured-tokens-per-gpu", metavar="N", help="Measured tokens/s per GPU.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(metavar="N", help="Tokens to train on, such as 1T: days, GPU-hours, price.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(metavar="N", help="Steps with the noise of the job's [jitter]: p50, p95, causes.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="S", help="Of the noise; the same seed, the same steps.")] = None,
) -> None:
    """Predict one training step: time with a band, memory per pipeline rank, and where both go."""
    from simulator.report.summary import describe
    from simulator.studies.measured import judge_step_time, measured_time
    from simulator.studies.training_cost import training_cost

    the_job = read_job(job, model, cluster, settings)
    wanted = None if tokens is None else quantity("--tokens", tokens, "tokens")
    given = None if measured is None else quantity("--measured", measured, "s")
    rate = None if measured_rate is None else quantity("--measured-tokens-per-gpu", measured_rate, "tokens")
    seconds = measured_time(the_job, given, rate)
    warn_if_cold()
    prediction = _simulate(the_job, engine)
    answer, sections = _answer(prediction), describe(prediction, the_job.name)
    answer["job"] = the_job.name
    if seconds is not None:
        judgement = judge_step_time(prediction, seconds)
        answer["measured"] = judgement.to_dict()
        sections.append(judgement.section())
    if wanted is not None:
        cost = training_cost(prediction, wanted, the_job.cluster.price_per_gpu_hour)
        answer["training"] = cost.to_dict()
        sections.append(cost.section())
    if the_job.jitter is not None or samples is not None or seed is not None:
        from simulator.studies.variation import DEFAULT_SAMPLES, vary

        count = DEFAULT_SAMPLES if samples is None else samples
        variation = vary(the_job, count, 0 if seed is None else seed, engine, note)
        answer["jitter"] = variation.to_dict()
        sections.insert(1, variation.section())
    if not prediction.fits:
        from simulator.studies.advice import make_it_fit

        note("out of memory: trying single changes ...")
        advice = make_it_fit(the_job, prediction, engine)
        answer["advice"] = advice.to_dict()
        sections.append(advice.section())
    _write_files(prediction, the_job, sections, trace, plot, report)
    if as_json:
        print_json(answer)
    else:
        print_sections(sections)


def _simulate(job: Job, engine: str) -> Prediction:
    from simulator.simulation import simulate_job

    return simulate_job(job, engine)


def _answer(prediction: Prediction) -> dict[str, Any]:
    from simulator.studies.standing import standing_at_peak

    return prediction.to_dict() | {"largest_at_peak": standing_at_peak(prediction)}


def _write_files(
    prediction: Prediction, job: Job, sections: list[Section], trace: str | None, plot: str | None, report: str | None
) -> None:
    parts = (prediction.program, prediction.prices, prediction.trace)
    if trace:
        from simulator.report.chrome_trace import export_chrome_trace

        wrote(export_chrome_trace(*parts, trace))
    if plot:
        from simulator.report.plots import plot_prediction

        wrote(plot_prediction(*parts, plot, title=sections[0].title, capacity=prediction.capacity))
    if report:
        from simulator.report.page import write_page

        wrote(write_page(prediction, job.name, sections, report))
