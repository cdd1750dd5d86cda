"""The rule of stages with meshes of their own: a mesh for every rank, as large as it, and messages from all of one to all of another."""

from __future__ import annotations

from simulator.errors import ProgramError
from simulator.program.program import TRANSFER, Link, Program

__all__ = ["stages_have_meshes"]


def stages_have_meshes(program: Program) -> None:
    """Check the meshes of stages, and the ends of what goes between them.

    Raises:
        ProgramError: with the rank or the item, and the values.
    """
    if len(program.stages) not in (0, program.ranks):
        raise ProgramError(
            f"stages have a mesh for every rank or for none, but {len(program.stages)} of {program.ranks} have one"
        )
    for rank, mesh in enumerate(program.stages):
        if mesh.first < 0 or mesh.ranks != program.rank_weight[rank]:
            raise ProgramError(
                f"a rank stands for as many real ranks as its mesh has, from world rank 0 on: rank {rank} for "
                f"{program.rank_weight[rank]:g}, its mesh has {mesh.ranks}, from {mesh.first}"
            )
    for number, item in enumerate(program.items):
        if type(item) is not Link or (not item.ends and (item.kind != TRANSFER or not program.stages)):
            continue
        wanted = [program.stages[rank].ranks for rank in item.pipeline_ranks] if program.stages else []
        if item.kind != TRANSFER or [end.ranks for end in item.ends] != wanted:
            raise ProgramError(
                f"the ends of a transfer are all ranks of two stages: item {number} ({item.name}) has {[end.ranks for end in item.ends]}, "
                f"and the stages {wanted}"
            )
