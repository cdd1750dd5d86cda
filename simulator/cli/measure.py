"""dtsim measure: micro-benchmarks on this machine; writes what calibrate reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli.options import ForceOption, JsonOption
from simulator.cli.output import claim, note, print_json, wrote
from simulator.errors import SpecError

if TYPE_CHECKING:
    from simulator.probes.torch_device import Device

__all__ = ["KINDS", "command"]

KINDS = ("gemm", "attention", "memory", "nccl", "overlap", "machine")
"""What can be measured."""


def command(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=" | ".join(KINDS))],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write to.")] = Path(
        "measured"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and smaller cases.")] = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure this machine's GPUs, or its processor where it has none, and write tables that calibrate reads.

    The part for GPUs has not met one yet: look at its first figures with doubt.
    """
    if kind not in KINDS:
        raise SpecError(f"measure what? Expected {', '.join(KINDS)}, got {kind[:40]!r}")
    from simulator.probes.torch_device import find_device, require_torch

    require_torch()
    if output.exists() and not output.is_dir():
        raise SpecError(f"--output: {output} is a file; name a folder")
    claim(force, *_there(kind, output), makes_folders=True)
    device = find_device()
    output.mkdir(parents=True, exist_ok=True)
    note(f"measuring {kind} on {device.name} ({device.software}) ...")
    files = _measure(kind, device, output, quick)
    for path in files:
        wrote(path)
    next_step = _next(kind, files)
    if as_json:
        print_json({"device": device.name, "files": [str(path) for path in files], "next": next_step}, kind)
    else:
        print(next_step)


def _there(kind: str, output: Path) -> list[Path]:
    """The files of earlier measurements of this kind, which new ones would replace."""
    patterns = {"nccl": "nccl_*.txt", "machine": "hardware_specs/*/this_machine.toml"}
    return sorted(output.glob(patterns.get(kind, f"{kind}.csv")))


def _measure(kind: str, device: Device, output: Path, quick: bool) -> list[Path]:
    path = output / f"{kind}.csv"
    if kind == "nccl":
        from simulator.probes.collectives import measure_collectives

        return measure_collectives(device, output, quick)
    if kind == "machine":
        from simulator.probes.machine import describe_machine

        return describe_machine(device, output)
    if kind == "overlap":
        from simulator.probes.overlap import overlap_rows, write_overlap

        write_overlap(list(overlap_rows(device, quick)), path)
        return [path]
    from simulator.probes.kernels import attention_rows, gemm_rows, memory_rows, write_rows

    measure = {"gemm": gemm_rows, "attention": attention_rows, "memory": memory_rows}[kind]
    write_rows(list(measure(device, quick)), path)
    return [path]


def _next(kind: str, files: list[Path]) -> str:
    """Return what to do with the files."""
    if kind == "machine":
        return (
            f"next, in {files[0].parents[2]}: dtsim collective all_reduce --size 1MiB --cluster this_machine --ranks 2"
        )
    names = " ".join(str(path) for path in files)
    mine = {"memory": "memory_bound", "overlap": "interference"}.get(kind, kind)
    return f"next: dtsim calibrate {kind} {names} --output {mine}_mine.toml"
