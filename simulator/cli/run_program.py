"""dtsim run of a step that is a program already: a file that `dtsim capture` wrote, or one written by hand."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.cli.options import cluster_changes
from simulator.errors import SpecError

if TYPE_CHECKING:
    from simulator.report.prediction import Prediction

__all__ = ["is_program", "run_program"]

_MOST_BYTES = 2**30


def is_program(job: str | None) -> bool:
    """Return whether a JOB is a program's text: it begins as one."""
    from simulator.program.text_words import PROGRAM_BEGINS

    path = Path(os.path.expanduser(job or ""))
    if job is None or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(PROGRAM_BEGINS)) == PROGRAM_BEGINS.encode()


def run_program(
    path: str, cluster: str | None, settings: Sequence[str], engine: str, unused: Mapping[str, object]
) -> Prediction:
    """Return the prediction of a program on a cluster.

    Args:
        settings: of the cluster.
        unused: options that ask for what only a job has.

    Raises:
        SpecError: no cluster is given, or an option that a program cannot serve; or what `simulate_program` raises.
    """
    from simulator.hardware.cluster import load_cluster
    from simulator.program.text import parse_text
    from simulator.simulation import simulate_program

    given = [name for name, value in unused.items() if value]
    if given:
        raise SpecError(
            f"{', '.join(given)}: a program has no workload and no plan to measure or to show. Way out: a JOB, or leave it out"
        )
    if cluster is None:
        raise SpecError(f"{path}: a program says what happens, not on what. Way out: --cluster C (dtsim list clusters)")
    file = Path(os.path.expanduser(path))
    if file.stat().st_size > _MOST_BYTES:
        raise SpecError(f"{path}: a program of more than {_MOST_BYTES >> 20} MiB")
    program = parse_text(file.read_text(encoding="utf-8", errors="replace"))
    return simulate_program(program, load_cluster(cluster, program.world_size, cluster_changes(settings)), engine)
