"""dtsim calibrate: measurements in, a fitted data file out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import ForceOption, JsonOption, quantity
from simulator.cli.output import claim, note, print_json, print_sections, wrote
from simulator.errors import SpecError
from simulator.specs import write_text

if TYPE_CHECKING:
    from simulator.calibration.collectives.judge.machine import Machine

__all__ = ["KINDS", "command"]

KINDS = ("nccl", "gemm", "attention", "memory", "overlap")
"""What can be calibrated."""

_NCCL_ONLY = ("cluster", "kind_of_log", "gpus_per_node", "nodes", "ranks", "intra", "inter", "nic", "plot", "accuracy")


def command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=" | ".join(KINDS))],
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="nccl: logs of nccl-tests, text or JSON, or an index.csv; else CSV."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="PROFILE.toml", help="The file to write.")
    ] = None,
    force: ForceOption = False,
    gpu: Annotated[str, typer.Option("--gpu", help="The GPU, where the files do not name it.")] = "",
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="C", help="nccl: the machine (dtsim list clusters).")
    ] = "",
    kind_of_log: Annotated[
        str, typer.Option("--kind", help="nccl: the collective, where a log does not name it.")
    ] = "",
    gpus_per_node: Annotated[int | None, typer.Option("--gpus-per-node", help="nccl: ranks on each node.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="nccl: nodes.")] = None,
    ranks: Annotated[int | None, typer.Option("--ranks", help="nccl: ranks.")] = None,
    intra: Annotated[
        str, typer.Option("--intra", help="nccl: nvlink4_nvswitch, pcie4, pcie_shm, xgmi, none, ...")
    ] = "",
    inter: Annotated[str, typer.Option("--inter", help="nccl: ib_ndr, roce, efa, tcp, ...")] = "",
    nic: Annotated[str, typer.Option("--nic", help="nccl: network per GPU, such as '400 Gb/s'.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="nccl: also logs that look unhealthy.")] = False,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="nccl: judge fits on logs left out (a second per log); writes nothing.")
    ] = False,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="OUT.png", help="nccl: points, curves, residuals.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit the constants of a cost model to measurements and write them as a profile that a cluster can name."""
    given = {name: value for name, value in locals().items() if name in _NCCL_ONLY and value not in ("", None, False)}
    if kind not in KINDS:
        raise SpecError(f"calibrate what? Expected {', '.join(KINDS)}, got {kind[:40]!r}")
    if kind != "nccl" and (given or everything):
        names = ", ".join(sorted(f"--{name.replace('_', '-')}" for name in given)) or "--all"
        raise SpecError(f"{names} describe logs of nccl, but this calibrates {kind}")
    if output is None and not accuracy:
        raise SpecError("where to? Give --output PROFILE.toml")
    if output is not None and not accuracy:
        _check_output(output, force)
        claim(force, output, plot, makes_folders=True)
    if kind == "nccl":
        from simulator.calibration.collectives.judge.machine import Machine

        machine = Machine(
            cluster=cluster,
            kind=kind_of_log,
            gpu=gpu,
            gpus_per_node=gpus_per_node,
            nodes=nodes,
            ranks=ranks,
            intra=intra,
            inter=inter,
            nic=quantity("--nic", nic, "B/s") if nic else None,
        )
        if accuracy:
            _judge(files, machine, everything, as_json)
        elif output is not None:
            _nccl(files, machine, everything, output, force, plot, as_json)
    elif output is not None:
        _kernels(kind, files, gpu, output, as_json)


def _check_output(output: Path, force: bool) -> None:
    if output.suffix != ".toml":
        raise SpecError(f"--output: a profile is a TOML file, such as nccl_mine.toml, but got {str(output)!r}")
    claim(force, output, makes_folders=True)


def _nccl(
    files: list[Path], machine: Machine, everything: bool, output: Path, force: bool, plot: str | None, as_json: bool
) -> None:
    from simulator.calibration.collectives.report.profile_file import export_profile
    from simulator.calibration.collectives.report.screen import calibration_sections, fit_figures, plot_fit
    from simulator.calibration.collectives.tool import collect_logs, fit_profiles

    collected = collect_logs(files, machine, everything)
    profiles = fit_profiles(collected, output.stem)
    paths = [output.parent / f"{profile.name}.toml" for profile in profiles]
    for path in paths[1:]:
        _check_output(path, force)
    sections = calibration_sections(profiles, collected)
    fits = [fit_figures(p, collected) | {"file": str(path)} for p, path in zip(profiles, paths, strict=True)]
    output.parent.mkdir(parents=True, exist_ok=True)
    for profile, path in zip(profiles, paths, strict=True):
        export_profile(profile, path)
    if plot:
        plot_fit(profiles, collected.logs, plot)
    if as_json:
        print_json({"profiles": fits, "noticed": collected.remarks, "left_out": collected.refused}, "calibrate")
    else:
        print_sections(sections)
    for path in [*paths, *([Path(plot)] if plot else [])]:
        wrote(path)
    note(_way_to_use(output.stem))


def _way_to_use(name: str) -> str:
    if not name.startswith(("nccl_", "interference_")):
        return f"a cluster finds profiles whose names begin with nccl_: calibrate again with --output nccl_{name}.toml"
    return f'to use it: hardware_specs/calibrations/{name}.toml, and calibration = ["{name}"] in a cluster\'s file'


def _judge(files: list[Path], machine: Machine, everything: bool, as_json: bool) -> None:
    from simulator.calibration.collectives.report.accuracy import (
        accuracy_figures,
        accuracy_section,
        bands_section,
        log_accuracies,
    )
    from simulator.calibration.collectives.tool import collect_logs

    collected = collect_logs(files, machine, everything)
    collected.check("judge")
    for line in collected.refused:
        note(f"left out: {line}")
    found = list(log_accuracies(collected.logs))
    if as_json:
        print_json(accuracy_figures(found), "accuracy")
    else:
        print_sections([accuracy_section(found), bands_section(found)])


def _kernels(kind: str, files: list[Path], gpu: str, output: Path, as_json: bool) -> None:
    from simulator.calibration.kernels.overlap import calibrate_overlap
    from simulator.calibration.kernels.tool import calibrate_kernels

    overlap = kind == "overlap"
    if overlap and not output.stem.startswith("interference_"):
        raise SpecError(
            f"--output: a cluster finds such files by names that begin with interference_, such as "
            f"interference_mine.toml, but got {output.name!r}"
        )
    name = output.stem
    answer = calibrate_overlap(files, gpu, name) if overlap else calibrate_kernels(kind, files, gpu, name)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, answer.toml())
    if as_json:
        print_json(answer.figures, "calibrate_kernels")
    else:
        print_sections([answer.section()])
    wrote(output)
    if overlap:
        note(_way_to_use(name))
