"""dtsim compare: several jobs, or several settings of one, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli import completion
from simulator.cli.options import (
    ClusterOption,
    EngineOption,
    ForceOption,
    JsonOption,
    ModelOption,
    TableOption,
    numbers,
    read_job,
    run_own_schedules,
    words,
)
from simulator.cli.output import check_some, claim_table, note, print_answer, save_table, tell_compiling, wrote
from simulator.errors import SpecError, UnknownNameError
from simulator.report.picture import check_picture

if TYPE_CHECKING:
    from pathlib import Path

    from simulator.job import Job
    from simulator.studies.latency_sweep import LatencySweep

__all__ = ["command", "draw_sweep", "latency_points"]


def command(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB...",
            help="A job's name (dtsim list jobs), its TOML file, or a file of another program; or several.",
            autocompletion=completion.jobs,
        ),
    ] = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help="Schedules, such as gpipe,1f1b; or all.", autocompletion=completion.schedules
        ),
    ] = None,
    zero: Annotated[str | None, typer.Option(metavar="0,1,...", help="ZeRO stages.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TABLE.KEY=A,B,C", help="Values of any setting; one alone holds for all rows."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", metavar="TABLE.KEY=A,B,C", help="The same; also cluster=A,B, model=A,B, gpus=64,128."),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="64,128,...", help="Instead: the job on these numbers of GPUs.")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--scaling", metavar="strong|weak", help="With --gpus: the global batch stays, or grows with them."
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Best first: step, tokens/s, mfu, bubble, comm, memory, price, energy, name."
        ),
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="fits", help="Leave out what does not fit or cannot be.")] = None,
    output: TableOption = None,
    engine: EngineOption = "compiled",
    plot: Annotated[
        str | None, typer.Option(metavar="OUT.png", help="Draw time, bubble and memory side by side.")
    ] = None,
    timelines: Annotated[
        str | None, typer.Option(metavar="OUT.png", help="Draw the timelines below one another.")
    ] = None,
    figure: Annotated[
        str | None, typer.Option(metavar="OUT.pdf", help="Draw timelines, and time against memory, as a paper does.")
    ] = None,
    latencies: Annotated[
        str | None,
        typer.Option(
            "--latency-sweep",
            metavar="0,0.1,...",
            help="Instead: the schedules in abstract time (F = I = W = 1), by latency of a hop.",
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Put jobs, schedules, ZeRO stages or any setting side by side: one table, one picture. Rows that cannot be say why."""
    from simulator.studies.comparison import beside, compare
    from simulator.studies.variants import variants

    claim_table(force, output, plot, timelines, figure)
    check_picture(plot, figure)
    if only not in (None, "fits"):
        raise UnknownNameError("kind of row for --only", str(only), ["fits"])
    if (sort or only) and (gpus or latencies):
        raise SpecError("--sort and --only order and choose variants. Leave them out with --gpus and --latency-sweep")
    settings = [*(settings or ()), *(vary or ())]
    if mode is not None and gpus is None:
        raise SpecError("--scaling says what happens to the global batch on more GPUs. Give --gpus 64,128,...")
    run_own_schedules([*settings, *words("--schedule", schedule)])
    several, job = list(dict.fromkeys(jobs or ())), jobs[0] if jobs else None
    for option, value in (("--gpus", gpus), ("--latency-sweep", latencies)):
        if value and len(several) > 1:
            raise SpecError(
                f"{option} is of one job, but {len(several)} were given: {', '.join(several)[:200]}. Leave it out"
            )
    for one in (*several,) or (None,):
        if one is None or model or cluster:
            base = read_job(one, model, cluster, None)
            if not (schedule or zero):
                _say_no_plan(base, settings)
    if latencies is not None:
        if zero or timelines or figure or gpus:
            raise SpecError(
                "--latency-sweep compares schedules alone. Leave out --zero, --gpus, --timelines and --figure"
            )
        base = read_job(job, model, cluster, settings)
        _sweep(base, _schedules(schedule), words("--latency-sweep", latencies), plot, output, as_json)
        return
    asked = variants(_schedules(schedule), numbers("--zero", zero), settings)
    tell_compiling()
    if gpus is not None:
        if timelines or figure:
            raise SpecError("--gpus draws scaling curves (--plot). Leave out --timelines and --figure")
        _scale((job, model, cluster), asked, numbers("--gpus", gpus), mode or "strong", engine, plot, output, as_json)
        return
    comparison = (
        beside({name: compare(name, asked, model=model, cluster=cluster, engine=engine) for name in several})
        if len(several) > 1
        else compare(job, asked, model=model, cluster=cluster, engine=engine)
    )
    check_some(len(comparison.predicted), [row.reason for row in comparison.rows], "variants")
    comparison = comparison.fitting() if only else comparison
    comparison = comparison.sorted_by(sort) if sort else comparison
    save_table(comparison, output)
    if plot:
        from simulator.report.comparison_plot import plot_comparison

        wrote(plot_comparison(comparison.predicted, plot, comparison.title))
    if timelines:
        from simulator.report.plots import plot_timelines

        wrote(plot_timelines([(name, p.program, p.step_trace) for name, p in comparison.predicted], timelines))
    if figure:
        from simulator.report.schedule_plot import plot_schedules

        wrote(plot_schedules(comparison.predicted, figure, comparison.title))
    print_answer(comparison, "compare", as_json)


def _say_no_plan(job: Job, asked: list[str]) -> None:
    """Say of which plan the rows are where neither a job nor what is asked for names one."""
    from simulator.aliases import renamed
    from simulator.studies.other_plan import names_a_plan

    if not names_a_plan(job) and not any(renamed(one).startswith("plan.") for one in asked):
        note(
            "no plan is named, so all rows are plain data parallelism, nothing sharded. Way out: --set plan...., as dtsim run, which looks "
            "for a good plan, prints it; or dtsim search"
        )


def _schedules(text: str | None) -> list[str]:
    """Return the names asked for; `all` is every schedule."""
    asked = words("--schedule", text)
    if asked != ["all"]:
        return asked
    from simulator.schedules import SCHEDULES

    return [schedule.name for schedule in SCHEDULES]


def _scale(
    place: tuple[str | None, str | None, str | None],
    asked: list[tuple[str, ...]],
    gpus: list[int],
    mode: str,
    engine: str,
    plot: str | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Run the job on several numbers of GPUs."""
    from simulator.studies.scaling import scaling
    from simulator.studies.variants import VariantLoader

    if mode not in ("strong", "weak"):
        raise SpecError(f"--scaling: expected strong or weak, got {mode[:40]!r}")
    found = scaling(VariantLoader(*place), asked, gpus, "weak" if mode == "weak" else "strong", engine)
    reasons = [point.reason for curve in found.curves for point in curve.points if point.reason]
    check_some(sum(len(curve.predicted) for curve in found.curves), reasons, "points")
    save_table(found, output)
    if plot:
        from simulator.report.scaling_plot import plot_scaling

        curves = [
            (c.name, [(p.gpus, p.tokens_per_second, p.efficiency or 0.0, p.fits) for p in c.predicted])
            for c in found.curves
        ]
        wrote(plot_scaling(curves, plot, f"{found.name}, {found.mode} scaling"))
    print_answer(found, "scaling", as_json)


def latency_points(texts: list[str]) -> list[float]:
    """Return the latencies of a sweep.

    Raises:
        SpecError: one is no number.
    """
    try:
        return [float(word) for word in texts]
    except ValueError:
        raise SpecError(f"--latency-sweep: expected numbers such as 0,0.1,0.2, got {','.join(texts)[:80]!r}") from None


def draw_sweep(sweep: LatencySweep, path: str) -> Path:
    """Draw the bubble of schedules over latencies into a file."""
    from simulator.report.comparison_plot import plot_latency_sweep

    bubbles = {name: sweep.bubble[i].tolist() for i, name in enumerate(sweep.names)}
    turns = [turn.latency for turn in sweep.turns if turn.wins]
    return plot_latency_sweep(sweep.latencies, bubbles, turns, path, sweep.hop)


def _sweep(
    job: Job, schedules: list[str], latencies: list[str], plot: str | None, output: str | None, as_json: bool
) -> None:
    """Sweep the latency of a hop for the shape of a job."""
    from simulator.studies.comparison import job_shape
    from simulator.studies.latency_sweep import hop_of, latency_sweep

    points = latency_points(latencies)
    tell_compiling()
    shape = job_shape(job)
    sweep = latency_sweep(schedules or ["gpipe", "one_f_one_b"], shape, points, hop=hop_of(job))
    save_table(sweep, output)
    if plot:
        wrote(draw_sweep(sweep, plot))
    print_answer(sweep, "latency_sweep", as_json)
