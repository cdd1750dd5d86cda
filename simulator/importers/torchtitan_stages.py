"""How torchtitan cuts a model into pipeline stages, and which schedule runs them.

Source: pytorch/torchtitan, torchtitan/distributed/pipeline_parallel.py: embedding and output count as layers (by default one each) when
layers are dealt out, and the first stages take what does not divide.
"""

from __future__ import annotations

from simulator.importers.settings import Entry, Settings, whole_of, word_of
from simulator.lowering.steps.assign import ends_as_layers

__all__ = ["SCHEDULES", "read_stages"]

SCHEDULES = {
    "1F1B": ("one_f_one_b", 1), "GPipe": ("gpipe", 1), "Interleaved1F1B": ("interleaved_1f1b", 2), "LoopedBFS": ("looped_bfs", 2),
    "InterleavedZeroBubble": ("zb_interleaved", 2), "ZBVZeroBubble": ("zbv", 2), "DualPipeV": ("dualpipev", 2),
}  # fmt: skip
"""PyTorch's schedule -> (ours, stages a rank holds by default)."""
_TWO = ("zbv", "dualpipev")
"""Schedules with two stages a rank, whatever is asked for."""


def read_stages(settings: Settings) -> None:
    """Put schedule, chunks and the split of layers.

    Raises:
        SpecError: a number that is none.
    """
    at = "parallelism.pipeline_parallel_"
    ranks = settings.get("plan.pipeline_parallel", 1)
    entry = settings.take(f"{at}schedule", "experimental.pipeline_parallel_schedule")
    file = settings.take(f"{at}schedule_csv")
    per_stage = settings.take(f"{at}layers_per_stage")
    first = settings.whole(f"{at}first_stage_less_layers", least=0)
    last = settings.whole(f"{at}last_stage_less_layers", least=0)
    if ranks == 1:
        for one in filter(None, (entry, file, per_stage)):
            settings.waive(one, "pipeline_parallel = 1")
        return
    if file is not None and word_of(file):
        settings.refuse(file, "give the schedule's own file: --set plan.schedule=FILE.csv")
    name = word_of(entry).lower() if entry is not None else "1f1b"
    known = {theirs.lower(): found for theirs, found in SCHEDULES.items()}
    if name not in known and entry is not None:
        settings.refuse(entry, "known: " + ", ".join(known))
        return
    ours, chunks = known[name]
    if entry is not None:
        settings.put("plan.schedule", entry, ours)
    else:
        settings.assume("plan.schedule", ours, "torchtitan's default: 1F1B")
    layers = settings.get("model.layers")
    less = (1 if first is None else first, 1 if last is None else last)
    dealt = None if per_stage is None else _chunks(settings, per_stage, layers, sum(less), ranks, ours in _TWO)
    if per_stage is not None and dealt is not None:
        chunks = dealt
        settings.put("plan.chunks_per_rank", per_stage, chunks)
    elif chunks > 1:
        settings.assume("plan.chunks_per_rank", chunks, f"torchtitan's default for {word_of(entry) if entry else name}")
    split = ends_as_layers(layers, ranks * chunks, *less) if layers else None
    if split is not None:
        settings.assume(
            "plan.layer_split", split, "torchtitan counts embedding and output as layers when it deals layers out"
        )


def _chunks(settings: Settings, per_stage: Entry, layers: int | None, ends: int, ranks: int, two: bool) -> int | None:
    """Stages a rank holds of so many layers each; None where it cannot be, which is then listed as not understood."""
    if not layers:
        settings.refuse(per_stage, "of how many layers is not said")
        return None
    stages = -(-(layers + ends) // whole_of(per_stage))
    if stages % ranks or (two and stages != 2 * ranks):
        need = f"not two for each of {ranks} ranks" if two else f"no multiple of {ranks} ranks"
        settings.refuse(per_stage, f"makes {stages} stages, {need}")
        return None
    return stages // ranks
