"""dtsim search: the best plan of a space, with a proof, and why the others lost."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import (
    ClusterOption,
    ForceOption,
    JobArgument,
    JsonOption,
    ModelOption,
    SetOption,
    quantity,
    read_job,
)
from simulator.cli.output import (
    INTERRUPTED,
    check_job_file,
    claim,
    note,
    print_json,
    print_sections,
    save_table,
    tell_compiling,
    telling,
    wrote,
)
from simulator.errors import SimulatorError, SpecError
from simulator.report.picture import check_picture
from simulator.specs import write_text

if TYPE_CHECKING:
    from simulator.job import Job
    from simulator.search.answer import Answer
    from simulator.search.candidate import Candidate
    from simulator.studies.sensitivity import Sensitivity

__all__ = ["command"]


def command(
    job: JobArgument = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    settings: SetOption = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range", metavar="FIELD=V,V,...", help="Values of a field, such as plan.tensor_parallel=1,2,4,8."
        ),
    ] = None,
    fixed: Annotated[
        list[str] | None,
        typer.Option("--fix", metavar="FIELD=V", help="A value for all plans; its field leaves the default space."),
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="exact (default), dp, grid, descent, random, annealing or bayesian.")
    ] = None,
    objective: Annotated[str | None, typer.Option(help="step_time (default), cost, memory or energy.")] = None,
    fit_probability: Annotated[
        float | None,
        typer.Option(
            "--fit-probability", metavar="P", help="With which a plan must fit (default: 0.9); 0 = the point estimate."
        ),
    ] = None,
    gpus: Annotated[
        tuple[str, str] | None, typer.Option(metavar="at-most N", help="Choose the number of GPUs too, up to N.")
    ] = None,
    any_framework: Annotated[
        bool, typer.Option("--any-framework", help="Try what the framework's code does not run, too.")
    ] = False,
    like: Annotated[
        str | None,
        typer.Option("--from", metavar="JOB", help="Among ties take the smallest change from this job's plan."),
    ] = None,
    deadline: Annotated[str | None, typer.Option(metavar="T", help="Stop after this time, such as 30s.")] = None,
    budget: Annotated[str | None, typer.Option(metavar="T", help="Stop after this much processor time.")] = None,
    top: Annotated[int, typer.Option(help="How many of the best.")] = 10,
    tries: Annotated[int | None, typer.Option(help="Plans that strategies which draw simulate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of what they draw.")] = None,
    processes: Annotated[int, typer.Option("--processes", help="That simulate side by side.")] = 1,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="JOB.toml|OUT.csv|.parquet",
            help="Write the plan chosen as a job, or all plans as a table.",
        ),
    ] = None,
    plot: Annotated[str | None, typer.Option(metavar="OUT.png", help="Draw time against memory of all plans.")] = None,
    holds: Annotated[
        str | None,
        typer.Option(
            "--sensitivity",
            metavar="OUT.png",
            help="Ask again with other networks, memories, batches; draw what it costs.",
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the best plan: every plan of a space refused, bounded or simulated, the best ones with their bands, what each choice costs."""
    from simulator.job import SearchChoice
    from simulator.report.frames import ENDINGS
    from simulator.search.defaults import worlds
    from simulator.search.job_text import unwritten
    from simulator.search.search import search
    from simulator.search.space import make_space, read_ranges, table_ranges
    from simulator.studies.other_plan import names_a_plan

    claim(force, output, plot, holds)
    check_job_file(output, ENDINGS)
    check_picture(plot, holds)
    if gpus is not None and (gpus[0] != "at-most" or not gpus[1].isdecimal()):
        said_so = " ".join(word[:20] for word in gpus)
        raise SpecError(f"--gpus: expected at-most N, got {said_so!r}. One number: --fix cluster.gpus=N")
    asked, held = read_ranges(ranges or ()), read_ranges(fixed or (), "--fix")
    the_job = read_job(job, model, cluster, [*(settings or ()), *_sized(job, settings, held)])
    table = output is not None and Path(output).suffix.lower() in ENDINGS
    if output and not table and (lost := unwritten(the_job)):
        raise SpecError(
            f"{output}: a job file written here has no {', '.join(lost)}. Way out: leave out -o, and set the fields found by --set"
        )
    said = the_job.search or SearchChoice()
    own = (
        table_ranges(said.range, "[search.range]"),
        table_ranges({f: [v] for f, v in said.fix.items()}, "[search.fix]"),
    )
    asked, held = (
        {field: values for field, values in own[0].items() if field not in held} | asked,
        {field: values for field, values in own[1].items() if field not in asked} | held,
    )
    probability = next(p for p in (fit_probability, said.fit_probability, 0.9) if p is not None)
    if gpus is not None and "cluster.gpus" in asked:
        raise SpecError("--gpus at-most and --range cluster.gpus say the same. Give one of them")
    beside: dict[str, tuple[object, ...]] = {} if gpus is None else {"cluster.gpus": worlds(the_job, int(gpus[1]))}
    if not names_a_plan(the_job) and all(field.startswith("cluster.") for field in asked):
        asked, beside = {}, asked | beside
    space = make_space(the_job, asked, held, any_framework, beside)
    wanted = (
        {f: getattr(_plan_of(like), f.partition(".")[2]) for f in space.ranges if f.startswith("plan.")} if like else {}
    )
    if holds:
        from simulator.studies.sensitivity import check_one_cluster

        check_one_cluster(space)
    tell_compiling()
    with telling(steady=True) as tell:
        answer = search(
            space,
            strategy=next(s for s in (strategy, said.strategy, "exact") if s is not None),
            objective=next(o for o in (objective, said.objective, "step_time") if o is not None),
            fit_probability=probability,
            top=top,
            tries=tries,
            seed=seed,
            deadline=None if deadline is None else quantity("--deadline", deadline, "s"),
            budget=None if budget is None else quantity("--budget", budget, "s"),
            processes=processes,
            like=wanted,
            tell=tell,
            partial=True,
        )
    if answer.stopped:
        note("stopped; here is what is known so far")
    if output and not table and answer.chosen:
        from simulator.search.job_text import job_text

        write_text(output, job_text(space.job_of(answer.chosen.point), answer.chosen.settings))
        wrote(output)
    told = _sensitivity(answer, answer.chosen, holds) if holds and answer.chosen and not answer.stopped else None
    if as_json:
        print_json(answer.to_dict() | ({"sensitivity": told.to_dict()} if told else {}), "search")
    else:
        print_sections(
            [*answer.sections(_run(job, model, cluster, settings, answer)), *([told.section()] if told else [])]
        )
    if plot and answer.stopped and not answer.candidates:
        note(f"{plot}: not written, since no plan was simulated before the stop")
    elif plot:
        _draw(answer, the_job, plot)
    if holds and answer.chosen is None and not answer.stopped:
        raise _not_written(holds, answer)
    if output and table:
        save_table(answer, output, "plans")
    elif output and answer.chosen is None:
        if answer.stopped:
            note(f"{output}: not written, since no plan was found before the stop")
            raise typer.Exit(INTERRUPTED)
        raise _not_written(output, answer)
    if answer.stopped:
        raise typer.Exit(INTERRUPTED)


def _sized(job: str | None, settings: Sequence[str] | None, held: Mapping[str, tuple[object, ...]]) -> list[str]:
    """The number of GPUs that all plans of a model have, as a setting: a batch that nobody gave follows from it."""
    fixed = held.get("cluster.gpus", ())
    said = {setting.partition("=")[0].strip() for setting in settings or ()}
    if job is not None or len(fixed) != 1 or said & {"cluster.gpus", "cluster.nodes", "gpus", "nodes"}:
        return []
    return [f"cluster.gpus={fixed[0]}"]


def _not_written(path: str, answer: Answer) -> SimulatorError:
    out = "a longer --deadline or --budget" if "open" in answer.disposed else "wider ranges, or --fit-probability 0"
    return SimulatorError(f"{path}: not written, since {answer.lack}. Way out: {out}")


def _run(job: str | None, model: str | None, cluster: str | None, settings: list[str] | None, answer: Answer) -> str:
    """The command that predicts the job as it was searched, but for what a plan changes."""
    from simulator.aliases import renamed
    from simulator.studies.variants import SHORT_KEYS

    changed = {setting.partition("=")[0] for setting in answer.settings(answer.chosen)} if answer.chosen else set()
    words = ["dtsim", "run", *([job] if job else []), *(["--model", model] if model else [])]
    words += ["--cluster", cluster] if cluster else []
    for setting in settings or ():
        key = renamed(setting).partition("=")[0].strip()
        words += [] if (SHORT_KEYS.get(key) or key) in changed else ["--set", setting]
    return shlex.join(words)


def _draw(answer: Answer, job: Job, path: str) -> None:
    """Time against memory of all plans that were simulated."""
    from simulator.report.search_plot import plot_search

    best = {one.point.number for one in answer.best}
    points = [(c.step_time, c.peak_memory, c.point.number in best) for c in answer.candidates.values()]
    front = [(c.step_time, c.peak_memory) for c in answer.pareto]
    chosen = (answer.chosen.step_time, answer.chosen.peak_memory) if answer.chosen else None
    wrote(
        plot_search(
            points,
            front,
            chosen,
            job.cluster.gpu.usable_memory,
            path,
            f"{answer.space.job.name}: the plans that were simulated",
        )
    )


def _sensitivity(answer: Answer, chosen: Candidate, path: str) -> Sensitivity:
    """How the choice holds, with its picture."""
    from simulator.report.tornado_plot import plot_tornado
    from simulator.search.candidate import OBJECTIVE_WORDS
    from simulator.studies.sensitivity import sensitivity

    with telling() as tell:
        found = sensitivity(answer.space, chosen, answer.probability, tell, answer.objective)
    objective = answer.objective
    worlds = [(world.name, world.best.value(objective), world.regret) for world in found.worlds if world.best]
    title = f"{answer.space.job.name}: the best plan in other worlds"
    wrote(plot_tornado(worlds, chosen.value(objective), path, title, OBJECTIVE_WORDS[objective]))
    return found


def _plan_of(name: str) -> object:
    from simulator.job import load_job

    return load_job(name).plan
