"""dtsim run: one training step predicted."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.options import (
    ClusterOption,
    EngineOption,
    ForceOption,
    JobArgument,
    JsonOption,
    ModelOption,
    SetOption,
    TableOption,
    quantity,
    read_job,
    with_plan_of_run,
)
from simulator.cli.output import (
    HTML,
    TRACE,
    check_ending,
    claim_table,
    note,
    print_json,
    print_sections,
    save_table,
    tell_compiling,
    wrote,
)
from simulator.cli.run_program import is_program, run_program
from simulator.errors import SpecError
from simulator.report.picture import check_picture

if TYPE_CHECKING:
    from simulator.importers.imported import Findings
    from simulator.importers.steps import Steps
    from simulator.job import Job
    from simulator.report.prediction import Prediction
    from simulator.report.table import Section

__all__ = ["DOES_NOT_FIT", "command"]

DOES_NOT_FIT = 3
"""Exit code of --strict when a step needs more memory than there is."""


def command(
    job: JobArgument = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    settings: SetOption = None,
    engine: EngineOption = "compiled",
    force: ForceOption = False,
    as_json: JsonOption = False,
    trace: Annotated[str | None, typer.Option(metavar="OUT.json.gz", help="Write a trace for ui.perfetto.dev.")] = None,
    plot: Annotated[str | None, typer.Option(metavar="OUT.png", help="Draw timeline and memory.")] = None,
    report: Annotated[
        str | None, typer.Option(metavar="OUT.html", help="Write a page to look at: one file, works offline.")
    ] = None,
    output: TableOption = None,
    measured: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|LOG|TRACE",
            help="A measured step time, such as 2.31s, the run's log, or a trace (PyTorch's profiler, Chakra, dtsim's own).",
        ),
    ] = None,
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
    strict: Annotated[
        bool, typer.Option("--strict", help="Leave with exit code 3 when the step does not fit.")
    ] = False,
) -> None:
    """Predict one training step: time with a band, memory per pipeline rank, and where both go.

    Exit codes: 0 answered, 2 the input is wrong, 3 it does not fit (with --strict only).
    """
    from simulator.energy.step_power import step_power
    from simulator.importers.jobs import is_foreign
    from simulator.report.summary import describe
    from simulator.studies.measured import judge_step_time, measured_time
    from simulator.studies.neighbours import beside_neighbours
    from simulator.studies.training_cost import training_cost

    check_ending("trace", trace, *TRACE)
    check_ending("page", report, *HTML)
    claim_table(force, output, trace, plot, report)
    check_picture(plot)
    if is_program(job):
        unused = {
            "--model": model, "--report": report, "--measured": measured, "--samples": samples,
            "--measured-tokens-per-gpu": measured_rate, "--tokens": tokens, "--seed": seed,
        }  # fmt: skip
        _run_program(str(job), cluster, settings or (), engine, unused, (trace, plot, output), as_json, strict)
        return
    the_job = read_job(job, model, cluster, settings, neighbours=True)
    wanted = None if tokens is None else quantity("--tokens", tokens, "tokens")
    log = None if measured is None else _log(measured)
    steps = log.steps if log else None
    given = (
        _seconds(steps, the_job)
        if steps
        else None
        if measured is None or log
        else quantity("--measured", measured, "s")
    )
    rate = None if measured_rate is None else quantity("--measured-tokens-per-gpu", measured_rate, "tokens")
    seconds = measured_time(the_job, given, rate)
    given_seed = seed
    varies = the_job.jitter is not None or samples is not None or seed is not None
    count, seed = _noise_of(the_job, samples, seed) if varies else (0, 0)
    tell_compiling()
    from_file = job is not None and is_foreign(job)
    planned = with_plan_of_run(the_job, job, model, cluster)
    from_file, the_job = from_file and planned is the_job, planned
    the_job, beside = beside_neighbours(the_job)
    prediction = _simulate(the_job, engine)
    answer, told = _answer(prediction), describe(prediction, the_job.name)
    sections = list(told)
    answer["job"] = the_job.name
    power = step_power(prediction, the_job.cluster, the_job.power)
    answer["power"] = power.to_dict()
    powered = power.section()
    sections.insert(-1, powered)
    if beside is not None:
        answer |= beside.to_dict()
        sections.insert(-1, beside.section())
    if seconds is not None:
        judgement = judge_step_time(prediction, seconds)
        answer["measured"] = judgement.to_dict() | ({"log": steps.to_dict()} if steps else {})
        sections += [*([steps.section()] if steps else []), judgement.section()]
    if log and log.operations:
        from simulator.studies.measured_kernels import kernels_beside

        beside_trace = kernels_beside(log.operations.by_kind(), prediction)
        answer["measured"] = answer.get("measured", {}) | {"kernels": beside_trace.to_dict()["by_kind"]}
        sections.append(beside_trace.section())
    if wanted is not None:
        cost = training_cost(prediction, wanted, the_job.cluster.price_per_gpu_hour)
        answer["training"] = cost.to_dict()
        sections.append(cost.section())
    if varies:
        from simulator.studies.variation import vary

        variation = vary(the_job, count, seed, engine, note)
        answer["jitter"] = variation.to_dict()
        sections.insert(1, variation.section())
    if from_file:
        from simulator.studies.other_plan import plan_instead

        if (instead := plan_instead(the_job, prediction)) is not None:
            answer["plan_instead"] = instead.to_dict()
            sections.append(instead.section())
    if not prediction.fits:
        from simulator.studies.advice import make_it_fit

        note("out of memory: trying single changes ...")
        advice = make_it_fit(the_job, prediction, engine)
        answer["advice"] = advice.to_dict()
        sections.append(advice.section())
    _write_files(prediction, sections, trace, plot)
    save_table(prediction, output)
    if report:
        from simulator.html.report import write_report

        note("simulating what one change would do ...")
        asked = [section for section in sections if section not in (*told, powered)]
        besides = {
            "--measured": measured, "--measured-tokens-per-gpu": measured_rate, "--tokens": tokens, "--samples": samples,
            "--seed": given_seed,
        }  # fmt: skip
        again = _command(job, model, cluster, settings, besides)
        wrote(write_report(prediction, the_job, report, again, asked, [powered]))
    if as_json:
        print_json(answer, "run")
    else:
        print_sections(sections)
    if strict and not prediction.fits:
        raise typer.Exit(DOES_NOT_FIT)


def _run_program(
    path: str,
    cluster: str | None,
    settings: Sequence[str],
    engine: str,
    unused: Mapping[str, object],
    files: tuple[str | None, str | None, str | None],
    as_json: bool,
    strict: bool,
) -> None:
    from simulator.report.summary import describe

    tell_compiling()
    prediction = run_program(path, cluster, settings, engine, unused)
    sections = describe(prediction, prediction.program.name)
    _write_files(prediction, sections, *files[:2])
    save_table(prediction, files[2])
    if as_json:
        print_json(_answer(prediction) | {"program": prediction.program.name}, "run")
    else:
        print_sections(sections)
    if strict and not prediction.fits:
        raise typer.Exit(DOES_NOT_FIT)


_MEASURED = "a training log, a trace of PyTorch's profiler (nsys exports are not read), or a time such as 2.31s"


def _log(measured: str) -> Findings | None:
    """What a log or trace says, when a file is named; None for a time."""
    import os

    from simulator.importers.jobs import import_file

    if (
        not os.path.exists(measured)
        and os.sep not in measured
        and not measured.endswith((".log", ".txt", ".json", ".gz", ".et"))
    ):
        return None
    found = import_file(measured, _MEASURED)
    if found.steps is None and not (found.operations and found.operations.rows):
        raise SpecError(f"--measured {measured}: is no training log and no trace. Way out: {_MEASURED}")
    return found


def _seconds(steps: Steps, job: Job) -> float:
    return steps.step_time(job.workload.tokens, job.workload.global_batch_size, job.cluster.world_size)


def _simulate(job: Job, engine: str) -> Prediction:
    from simulator.simulation import simulate_job

    return simulate_job(job, engine)


def _noise_of(job: Job, samples: int | None, seed: int | None) -> tuple[int, int]:
    """Number of steps with noise and their seed, checked before anything is simulated."""
    from simulator.studies.variation import DEFAULT_SAMPLES, described_noise

    count, seed = DEFAULT_SAMPLES if samples is None else samples, 0 if seed is None else seed
    described_noise(job, count, seed)
    return count, seed


def _answer(prediction: Prediction) -> dict[str, Any]:
    from simulator.report.memory import device_bytes
    from simulator.studies.live_tensors import live_at_peak

    shown = device_bytes(prediction.memory, prediction.fullest, prediction.reserved(prediction.fullest))
    return prediction.to_dict() | {"device_memory_bytes": shown, "largest_at_peak": live_at_peak(prediction)}


def _command(
    job: str | None,
    model: str | None,
    cluster: str | None,
    settings: list[str] | None,
    besides: Mapping[str, object],
) -> str:
    """The command line that gives the same answer; `besides` are options and what was given to them, None for nothing."""
    words = ["dtsim", "run", *([job] if job else ["--model", str(model), "--cluster", str(cluster)])]
    words += [word for setting in settings or () for word in ("--set", setting)]
    words += [str(word) for option in besides.items() if option[1] is not None for word in option]
    return shlex.join(words)


def _write_files(prediction: Prediction, sections: list[Section], trace: str | None, plot: str | None) -> None:
    parts = (prediction.program, prediction.prices, prediction.trace)
    if trace:
        from simulator.report.chrome_trace import write_prediction

        wrote(write_prediction(prediction, trace))
    if plot:
        from simulator.report.plots import plot_prediction

        wrote(plot_prediction(*parts, plot, title=sections[0].title, capacity=prediction.capacity))
