"""The program of stages with ranks of their own: of every stage the rank that a plan of equal stages as wide as it has, joined.

What goes from stage to stage is a message between unequal groups of ranks (`Link.ends`); what all stages meet in is among all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.assign import assign_layers
from simulator.program.deal import deal
from simulator.program.join import join, shared_rows
from simulator.program.program import TRANSFER, End, Link, Program, StageMesh
from simulator.workload.workload import Workload

__all__ = ["joined", "meshes_of", "stage_facts"]


def meshes_of(stages: Sequence[ResolvedPlan]) -> tuple[StageMesh, ...]:
    """Return where the ranks of each stage lie: one stage after another."""
    found, first = [], 0
    for stage in stages:
        axes = tuple([(name, size) for name, size in stage.axes if name != "pp"])
        found.append(StageMesh(axes, first))
        first += found[-1].ranks
    return tuple(found)


def stage_facts(workload: Workload, resolved: ResolvedPlan) -> list[dict[str, Any]]:
    """Return what each stage with ranks of its own is, for people."""
    model = workload.model
    chunks = assign_layers(model.depth, len(resolved.stages), resolved.layer_split, model.layer_kinds, model.mtp_layers)
    return [
        {
            "layers": chunk.layers,
            "ranks": mesh.ranks,
            "first_rank": mesh.first,
            "tensor_parallel": stage.tensor_parallel,
            "data_parallel": stage.data_parallel,
            "microbatch_size": stage.microbatch_size,
            "recompute": stage.recomputes.text,
            "weight_versions": versions,
        }
        for chunk, stage, mesh, versions in zip(
            chunks,
            resolved.stages,
            meshes_of(resolved.stages),
            resolved.schedule.weight_versions(resolved.shape).tolist(),
            strict=True,
        )
    ]


def joined(stages: Sequence[ResolvedPlan], programs: Sequence[Program]) -> Program:
    """Return the program whose rank r is that of `programs[r]`.

    Args:
        stages: the plans of which the programs are.
    """
    shared: dict[int, Link] = {}
    for owner, program in enumerate(programs):
        for number, row in enumerate(shared_rows(program).tolist()):
            item = program.items[int(program.item[row])]
            if int(program.rank[row]) == owner and isinstance(item, Link):
                shared[number] = _between(stages, item) if item.kind == TRANSFER else item
    program = join(
        programs,
        programs[0].name,
        (("pp", len(stages)),),
        meshes_of(stages),
        dict(sorted(shared.items())),
    )
    return deal(program, [stage.data_parallel for stage in stages]) if stages[0].schedule.deals else program


def _between(stages: Sequence[ResolvedPlan], link: Link) -> Link:
    """A message between two stages: all of it, and how the ranks on either side hold it."""
    source, target = (stages[rank] for rank in link.pipeline_ranks)
    held, wanted = _end(source, source.divides_stream), _end(target, target.divides_stream or _scatters(target))
    each = source.tensor_parallel if source.divides_stream or _scatters(source) else 1
    each *= 1 if source.schedule.deals else source.data_parallel
    return replace(link, message=link.message * each, ends=(held, wanted))


def _scatters(stage: ResolvedPlan) -> bool:
    """Whether its tensor-parallel ranks take a part each of what all of them need, and gather it."""
    return stage.framework.scatters_p2p and not stage.divides_stream


def _end(stage: ResolvedPlan, divided: bool) -> End:
    tensor = stage.tensor_parallel
    return End(stage.data_parallel, tensor, 1) if divided else End(stage.data_parallel, 1, tensor)
