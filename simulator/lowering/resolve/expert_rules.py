"""Where experts live: which ranks share them, which hold the same ones, and the rules that a plan must keep.

The ranks of a pipeline rank are factored twice: tensor x context x data parallel for all weights but the experts, and expert
tensor x expert x expert data parallel for these.  Both follow one mesh: expert-parallel ranks are consecutive inside
context x data parallel (and tensor parallel, where experts are not split by it), so they are whole axes and, of the next axis,
an inner part that becomes the mesh axis "ep".

    tp 2, dp 8, expert_parallel 4                               tp 2, ep 4, dp 2    experts over ep, copies over dp
    tp 2, dp 8, expert_parallel 4, expert_tensor_parallel 1     tp 2, ep 2, dp 4    experts over tp and ep, copies over dp
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.errors import PlanError
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan
from simulator.program.program import Axes
from simulator.remembered import hashed_once, kept
from simulator.workload.model import Model

__all__ = [
    "BY_MASKS",
    "Groups",
    "along_both",
    "check_experts",
    "cut_axis",
    "expert_loop",
    "with_experts",
]

BY_MASKS = "einsum"
"""The exchange whose rows are made by products with one-hot masks (`Plan.expert_exchange`)."""


@hashed_once
@dataclass(frozen=True, kw_only=True)
class Groups:
    """Mesh axes of each kind of group; the first names the account its time is counted under.

    Args:
        tensor, context: ranks that split layers, and sequences.
        heads: of those that split layers, ranks that hold the same key/value head; () where each has its own.
        ring: of those that split sequences, those between which keys and values go round while the others deal heads out; ().
        expert: ranks over which experts are dealt out; () when each holds all.
        replicas, expert_replicas: ranks that hold the same weights, and the same experts.
        copies, expert_copies: of these axes, those along which sharded states are repeated; () when they are sharded over all.
    """

    tensor: tuple[str, ...] = ("tp",)
    heads: tuple[str, ...] = ()
    context: tuple[str, ...] = ("cp",)
    ring: tuple[str, ...] = ()
    expert: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ("dp",)
    expert_replicas: tuple[str, ...] = ("dp",)
    copies: tuple[str, ...] = ()
    expert_copies: tuple[str, ...] = ()

    @kept
    def shards(self) -> tuple[str, ...]:
        """Axes over which states are sharded."""
        return tuple(axis for axis in self.replicas if axis not in self.copies)

    @kept
    def expert_shards(self) -> tuple[str, ...]:
        """Axes over which the states of experts are sharded."""
        return tuple(axis for axis in self.expert_replicas if axis not in self.expert_copies)

    @kept
    def between(self) -> tuple[tuple[str, ...], ...]:
        """Groups of axes along which shards are added between copies of the states."""
        return tuple(axes for axes in (self.copies, self.expert_copies) if axes)


def cut_axis(axes: Axes, axis: str, inner: int, outer: str) -> Axes:
    """Return the mesh axes with one cut in two: consecutive ranks keep its name, and the axis between them follows.

    >>> cut_axis((("tp", 8), ("dp", 2)), "tp", 4, "heads")
    (('tp', 4), ('heads', 2), ('dp', 2))
    """
    return tuple(
        part
        for name, size in axes
        for part in ([(name, inner), (outer, size // inner)] if name == axis else [(name, size)])
    )


def along_both(group: tuple[str, ...], axis: str, outer: str) -> tuple[str, ...]:
    """Return the axes of a group when one of them is cut in two."""
    return tuple(part for name in group for part in ([name, outer] if name == axis else [name]))


def with_experts(axes: Axes, plan: Plan, sparse: bool) -> tuple[Axes, Groups]:
    """Return the mesh axes, with "ep" where experts are dealt out, and the groups along them.

    Args:
        axes: mesh axes without experts, innermost first.
        sparse: whether the model has experts.

    Raises:
        PlanError: expert_parallel does not fit the axes.

    >>> axes, groups = with_experts((("tp", 2), ("dp", 8), ("pp", 1)), Plan(expert_parallel=4), True)
    >>> axes, groups.expert, groups.expert_replicas
    ((('tp', 2), ('ep', 4), ('dp', 2), ('pp', 1)), ('ep',), ('dp',))
    """
    same = ("cp", "dp") if plan.context_parallel > 1 else ("dp",)
    if not sparse:
        return axes, Groups(replicas=same, expert_replicas=same)
    alone = plan.expert_tensor_parallel == 1 and plan.tensor_parallel > 1
    inside = tuple(name for name, _ in axes if name in same or (alone and name == "tp"))
    if plan.expert_parallel == 1:
        return axes, Groups(replicas=same, expert_replicas=inside if alone else same)
    whole, cut, part = _members(dict(axes), inside, plan)
    out: list[tuple[str, int]] = []
    for name, size in axes:
        if name == cut:
            out.append(("ep", part))
        out.append((name, size // part if name == cut else size))

    def group(name: str) -> tuple[str, ...]:
        return (name, "ep") if name == cut and part > 1 else (name,)

    names = [name for name, _ in out]
    wanted = {member for name in same for member in group(name)}
    return tuple(out), Groups(
        tensor=group("tp"),
        context=group("cp"),
        expert=("ep", *whole),
        replicas=tuple(name for name in names if name in wanted),
        expert_replicas=tuple(name for name in names if name in inside and name not in whole),
    )


def _members(sizes: dict[str, int], inside: tuple[str, ...], plan: Plan) -> tuple[tuple[str, ...], str, int]:
    """Return (axes taken whole, the axis of which a part is taken, that part)."""
    left = plan.expert_parallel
    whole: list[str] = []
    for name in inside:
        size = sizes[name]
        if size % left == 0 and (name == "dp" or size > left):
            return tuple(whole), name, left
        if left % size:
            break
        left //= size
        whole.append(name)
    if left == 1:
        return tuple(whole), inside[-1], 1
    total = 1
    for name in inside:
        total *= sizes[name]
    words = " x ".join(f"{name} {sizes[name]}" for name in inside)
    way = next(d for d in range(min(plan.expert_parallel - 1, total), 0, -1) if _fits([sizes[n] for n in inside], d))
    raise PlanError(
        f"expert_parallel must take whole axes of {words} from the inside, and a divisor of the next, but it is "
        f"{plan.expert_parallel}. Nearest: expert_parallel = {way}."
    )


def _fits(sizes: list[int], left: int) -> bool:
    for size in sizes:
        if size % left == 0:
            return True
        if left % size:
            return False
        left //= size
    return left == 1


def check_experts(model: Model, plan: Plan, exchange: str) -> None:
    """Refuse what the model's experts do not allow, and what would have no effect.

    Args:
        exchange: how tokens reach their experts (`Plan.expert_exchange`).

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    if model.experts:
        plan.check_needs("expert_parallel", "expert_imbalance", "expert_exchange")
    tensor = plan.tensor_parallel
    split = plan.expert_tensor_parallel or tensor
    dealt = (
        "expert_parallel",
        "expert_tensor_parallel",
        "expert_exchange",
        "expert_group_size",
        "expert_loop",
        "expert_permute_fusion",
        "expert_imbalance",
    )
    plan.check_needs("model.experts", *dealt, model=model)
    if not model.experts:
        return
    _check_masks(model, plan, exchange)
    if plan.expert_permute_fusion is not None and exchange != "all_to_all":
        raise PlanError(
            "expert_permute_fusion is about kernels that copy tokens' rows in front of an all_to_all, but expert_exchange = "
            f"{exchange!r} makes the copies itself. Way out: leave expert_permute_fusion out, or expert_exchange = 'all_to_all'."
        )
    if model.capacity_factor and plan.expert_imbalance > 1:
        raise PlanError(
            "expert_imbalance is about experts that take all rows sent to them, but model "
            f"{model.name!r} fills or drops up to a capacity of {model.capacity_factor:g}: all ranks have equal work. Way out: "
            "leave expert_imbalance out, or model.capacity_factor = 0.0."
        )
    if plan.expert_tensor_parallel is not None and (tensor == 1 or split not in (1, tensor)):
        raise PlanError(
            "expert_tensor_parallel says whether tensor_parallel splits experts too, so it is 1 or tensor_parallel (> 1), but "
            f"expert_tensor_parallel = {split} and tensor_parallel = {tensor}. Way out: leave expert_tensor_parallel out."
        )
    if model.experts % plan.expert_parallel:
        near = max(d for d in range(1, model.experts + 1) if model.experts % d == 0 and d <= plan.expert_parallel)
        raise PlanError(
            f"expert_parallel must divide the model's experts, but {model.experts} / {plan.expert_parallel} is no whole number. "
            f"Nearest: expert_parallel = {near}."
        )
    for name, width, degree in (
        ("expert_ffn", model.expert_ffn, split),
        ("shared_expert_ffn", model.shared_expert_ffn, tensor),
    ):
        if width % degree:
            raise PlanError(
                f"tensor_parallel must divide the model's {name}, but {width} / {degree} is no whole number. Way out: "
                "expert_tensor_parallel = 1, or a smaller tensor_parallel."
            )
    if tensor > 1 and not plan.sequence_parallel and (plan.expert_parallel > 1 or split == 1):
        raise PlanError(
            "ranks that exchange rows of experts need tokens of their own, which tensor-parallel ranks have only under "
            f"sequence parallelism, but sequence_parallel = false, tensor_parallel = {tensor}, expert_parallel = "
            f"{plan.expert_parallel}, expert_tensor_parallel = {split}. Way out: sequence_parallel = true."
        )


def expert_loop(plan: Plan, framework: Framework, exchange: str) -> str:
    """Return whether and how experts run one after the other (`Plan.expert_loop`).

    Args:
        exchange: how tokens reach their experts.

    Raises:
        PlanError: they do, by the plan's word, and that does not go with the rest of it.
    """
    grouped = plan.expert_parallel > 1 or exchange == BY_MASKS or framework.fuses_experts
    if plan.expert_loop in (None, "none") or not grouped:
        loop = "none" if grouped else plan.expert_loop or framework.expert_loop
        if loop != "none" and plan.expert_permute_fusion is not None:
            raise PlanError(
                "expert_permute_fusion is about kernels that copy the rows of all experts, but experts in a loop take theirs one "
                f"after the other (expert_loop = {loop!r}). Way out: leave expert_permute_fusion out, or expert_loop = 'none'."
            )
        return loop
    raise PlanError(
        "experts in a loop take rows of their own rank's tokens and have products of their own, but expert_loop = "
        f"{plan.expert_loop!r}, expert_parallel = {plan.expert_parallel}, expert_exchange = {exchange!r} and framework "
        f"{framework.name!r} {'fuses' if framework.fuses_experts else 'does not fuse'} their products. Way out: expert_loop = 'none'."
    )


def _check_masks(model: Model, plan: Plan, exchange: str) -> None:
    """Rules of one-hot masks."""
    plan.check_needs("expert_exchange", "expert_group_size", expert_exchange=exchange)
    if exchange != BY_MASKS:
        return
    if not model.capacity_factor:
        raise PlanError(
            f"expert_exchange = {BY_MASKS!r} gives each expert the same number of rows of every group, but model {model.name!r} has "
            "capacity_factor = 0: experts take all rows sent to them. Way out: model.capacity_factor = 1.25, or "
            "expert_exchange = 'all_to_all'."
        )
    if plan.tensor_parallel > 1:
        raise PlanError(
            f"groups of tokens lie whole on a rank under expert_exchange = {BY_MASKS!r}, but tensor_parallel = {plan.tensor_parallel} "
            "shares tokens out. Way out: tensor_parallel = 1, or expert_exchange = 'all_to_all'."
        )
