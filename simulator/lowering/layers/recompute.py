"""What is computed again in the backward pass: which layers, and of a layer which operators; and what need not be kept then.

    full         all operators of a layer; its input is kept
    selective    the attention core, or the modules that the plan names
    operators    memory-bound kernels, every second matrix product and the grouped products of experts; not what goes between GPUs
    policy       what the backward pass needs beside the values that the policy names (`saved_values.py`)

Which layers (`recompute_method` with n = `recompute_layers`):

    block        the first n layers of each chunk, the others keep everything
    every        every n-th layer of a chunk
    uniform      all, n at a time from the input of the first of them ("full" only)
    recursive    all, from the input of the middle, and halves of that alike ("full" only)
    revolve      all, from n inputs at most, in the order of fewest forwards (recompute = "revolve")

Each is a plan of turns (`simulator.schedules.reversal`), from which follows what every layer keeps and what a backward runs again.

Modules are those of Megatron-LM's --recompute-modules: core_attn, mlp, moe and shared_experts keep their input and run again as a
whole; layernorm, moe_act and mla_up_proj keep their input and make again what the next product would have kept.

How much of a layer runs again, where all of it may (`Framework.recompute_extent`):

    layer        all of it: the layer is called a second time to its end (Megatron-LM, DeepSpeed, reentrant torch.utils.checkpoint)
    until_kept   as far as the last operator that keeps something for its backward (torch.utils.checkpoint without reentry stops there)
    needed       what the backward reads, and what that takes (a compiler drops the rest)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from simulator.lowering.layers.saved_values import repeated
from simulator.lowering.steps.assign import Chunk
from simulator.schedules import reversal
from simulator.schedules.reversal import Reversal, Turn
from simulator.workload.operator import LayerPart, Operator

__all__ = [
    "AGAIN",
    "AUTOMATIC",
    "CHAINS",
    "INNER",
    "Recompute",
    "Work",
    "dropped",
    "layer_policies",
    "policies_of",
    "policy_named",
    "reversal_of",
    "runs_again",
]

KEPT, INNER, AGAIN = " kept", " in a group", " again"
"""Endings of the kinds of layers that are not recomputed, of those whose input is not kept, and of a forward that runs again on the way to
another layer."""
AUTOMATIC = -1
"""Number of layers that stands for as many as need least memory (`simulator.lowering.grouping`)."""
CHAINS = ("recursive", "revolve")
"""Methods whose layers run again on the way to others."""
Work = Mapping[str, tuple[float, float]]
"""Kind of layer -> FLOP of its forward, bytes of its input."""


@dataclass(frozen=True, slots=True)
class Recompute:
    """What is recomputed.

    Args:
        kind: none, selective, operators, policy or full.
        modules: of "selective"; () = the attention core.
        policy, saves: name of a policy and the values that it keeps.
        extent: how much of a layer runs again: layer, until_kept or needed.
        method, layers: which layers; "" = all, each from its own input.
    """

    kind: str
    modules: tuple[str, ...] = ()
    method: str = ""
    layers: int = 0
    policy: str = ""
    saves: tuple[str, ...] = ()
    extent: str = "layer"

    @property
    def text(self) -> str:
        """In words, for people.

        >>> Recompute("full", method="block", layers=2).text
        'full (block of 2 layers)'
        """
        which = {"block": f"block of {self.layers} layers", "every": f"every {self.layers}. layer"}
        which["uniform"] = f"{self.layers} layers at a time"
        which |= {"recursive": "halves of halves", "revolve": f"revolve from {self.layers} inputs"}
        more = [", ".join(self.modules) or self.policy] if self.modules or self.policy else []
        more += [which[self.method]] if self.method else []
        return f"{self.kind} ({'; '.join(more)})" if more else self.kind


def reversal_of(chunk: Chunk, recompute: Recompute, work: Work | None = None) -> Reversal:
    """Return in what turns the layers of a chunk run backward.

    Args:
        work: of the kinds of its layers; left out: they are alike.
    """
    return _PLANS[recompute.method](chunk, recompute.layers, work or {})


def _revolve(chunk: Chunk, inputs: int, work: Work) -> Reversal:
    each = [work.get(kind, (1.0, 1.0)) for kind in chunk.names or ("layer",) * chunk.layers]
    times, sizes = [time for time, _ in each], [size for _, size in each]
    return reversal.revolve(times, sizes, inputs * max(sizes)) if each else reversal.each(0)


_PLANS: Mapping[str, Callable[[Chunk, int, Work], Reversal]] = {
    "": lambda chunk, n, work: reversal.each(chunk.layers),
    "block": lambda chunk, n, work: reversal.first(chunk.layers, n),
    "every": lambda chunk, n, work: reversal.every(chunk.layers, n),
    "uniform": lambda chunk, n, work: reversal.groups(chunk.layers, max(1, n)),
    "recursive": lambda chunk, n, work: reversal.halves(chunk.layers),
    "revolve": _revolve,
}


def layer_policies(chunk: Chunk, recompute: Recompute, work: Work | None = None) -> Chunk:
    """Return the chunk with what each of its layers does: endings of their kinds, () where all do the same.

    >>> layer_policies(Chunk(layers=3, head=True), Recompute("full", method="block", layers=1)).kinds
    ('layer', 'layer kept', 'layer kept', 'head')
    >>> layer_policies(Chunk(layers=3), Recompute("full", method="revolve", layers=1)).backward
    ('layer kept', 'layer again', 'layer in a group', 'layer')
    """
    if len(policies_of(recompute)) == 1 or not chunk.layers:
        return chunk
    plan = reversal_of(chunk, recompute, work)
    keeps, stored = plan.keeps, set(plan.stored)
    endings = tuple([KEPT if keeps[i] else "" if i in stored else INNER for i in range(chunk.layers)])
    turns = tuple([run for turn in plan.turns for run in _runs(turn)]) if recompute.method in CHAINS else ()
    return replace(chunk, endings=endings, turns=turns)


def _runs(turn: Turn) -> list[tuple[int, str]]:
    """(layer, its ending) of what a turn runs: forwards on the way, then the turn of one layer with its backward."""
    way = [(layer, AGAIN if layer == turn.start else INNER + AGAIN) for layer in range(turn.start, turn.first)]
    return [*way, (turn.first, KEPT if not turn.again else INNER if way else "")]


def policies_of(recompute: Recompute) -> tuple[str, ...]:
    """Return the endings that layers may have."""
    if recompute.method in ("block", "every"):
        return ("", KEPT)
    if recompute.method in CHAINS:
        return ("", INNER, KEPT, AGAIN, INNER + AGAIN)
    return ("", INNER) if recompute.method == "uniform" and recompute.layers > 1 else ("",)


def policy_named(ending: str, recompute: Recompute) -> Recompute:
    """Return what a layer with this ending does."""
    return Recompute("none") if ending == KEPT else recompute


def runs_again(part: LayerPart, recompute: Recompute) -> list[Operator]:
    """Return the operators that run again before the backward of a layer, forward order."""
    if recompute.kind == "policy" or (recompute.kind == "full" and recompute.extent == "needed"):
        chosen = repeated(part, recompute.saves)
        return [o for i, o in enumerate(part.operators) if i in chosen]
    if recompute.kind in ("full", "operators"):
        end = _kept_end(part) if recompute.extent == "until_kept" else len(part.operators)
        operators = part.operators[:end]
        return list(operators) if recompute.kind == "full" else [_part_of(o) for o in operators if o.again]
    if recompute.kind != "selective":
        return []
    chosen = _chosen(part, recompute.modules or ("core_attn",))
    return [o for i, o in enumerate(part.operators) if i in chosen]


def dropped(part: LayerPart, recompute: Recompute, sends: bool = True) -> set[tuple[int, int]]:
    """Return (operator, saved tensor) of what is not kept between forward and backward; `sends`: whether ranks exchange rows of experts.

    What came from other ranks is kept operator by operator (torchtitan's _op_sac_save_list has all_to_all_single, and no grouped product);
    where each rank has all experts nothing comes, and rows are put in order again.
    """
    saved = [(i, j) for i, o in enumerate(part.operators) for j in range(len(o.saved))]
    if recompute.kind in ("full", "policy"):
        return set(saved)
    if recompute.kind == "operators":
        some = ((i, j, part.operators[i].saved[j]) for i, j in saved)
        return {(i, j) for i, j, s in some if s.cheap or (s.sent and not sends)}
    if recompute.kind != "selective":
        return set()
    return set().union(*(_drops(part, module, saved) for module in recompute.modules or ("core_attn",)))


def _drops(part: LayerPart, module: str, saved: list[tuple[int, int]]) -> set[tuple[int, int]]:
    operators = part.operators
    if module == "core_attn":
        return {(i, j) for i, j in saved if operators[i].saved[j].droppable}
    inside = _chosen(part, (module,))
    if not inside:
        return set()
    if module in ("mlp", "moe"):
        return {(i, j) for i, j in saved if i in inside and (i, j) != (min(inside), 0)}
    if module == "shared_experts":
        return {(i, j) for i, j in saved if i in inside}
    out = {(i, j) for i, j in saved if i in inside and j > 0}  # what a kernel keeps beside its input
    if module == "mla_up_proj":
        core = _chosen(part, ("core_attn",))
        out |= {(i, j) for i, j in saved if i in core and not operators[i].saved[j].droppable}
        return out | {(i, j) for i, j in saved if i in inside and operators[i].work == "gemm"}
    return out | {(i + 1, 0) for i in inside if i + 1 < len(operators) and operators[i + 1].saved}


def _chosen(part: LayerPart, modules: tuple[str, ...]) -> set[int]:
    """Numbers of the operators that belong to any of these modules."""
    return {i for i, o in enumerate(part.operators) if set(modules) & set(o.modules)}


def _kept_end(part: LayerPart) -> int:
    """How many operators have run when all that backwards of the layer read is there: a product keeps what it is given, any other
    operator also what it made."""
    for i, o in reversed(tuple(enumerate(part.operators))):
        if o.work == "gemm":
            return i
        if o.work == "attention" or any(not saved.idle for saved in o.saved):
            return i + 1
    return 0


def _part_of(operator: Operator) -> Operator:
    """The part of an operator that per-operator recompute runs again: all of it, or a product with fewer columns."""
    if operator.again == 1.0 or operator.work != "gemm":
        return operator
    batch, m, n, k = operator.shape
    fewer = max(1, int(n * operator.again))
    columns = tuple(width * fewer // n for width in operator.columns)
    return replace(operator, shape=(batch, m, fewer, k), columns=columns)
