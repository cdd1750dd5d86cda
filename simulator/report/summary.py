"""A prediction as sections to read: headline, where the time goes, memory, how sure it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simulator.program.program import CATEGORIES
from simulator.report.memory import device_bytes
from simulator.report.prediction import Prediction
from simulator.report.ranks import ranks_section
from simulator.report.stages import stages_section, stages_text
from simulator.report.table import Section, Table, bar, percent
from simulator.report.window import step_window
from simulator.units import show

__all__ = ["describe", "headline", "memory_section", "sure_section", "time_section", "unseen_words"]

_MOST_RANKS = 16
_MOST_TENSORS = 6
_MOST_TERMS = 4
_SHORT = {"optimizer_states": "optimizer", "communication": "comm"}


def describe(prediction: Prediction, name: str) -> list[Section]:
    """Return all sections, in reading order."""
    differ = [stages_section(prediction)] if prediction.program.stages else []
    differ += [ranks_section(prediction)] if prediction.ranks else []
    return [
        headline(prediction, name),
        *differ,
        time_section(prediction),
        memory_section(prediction),
        sure_section(prediction),
    ]


def headline(prediction: Prediction, name: str) -> Section:
    """Return step time with its band, rates, and what ran on what."""
    p, facts = prediction, prediction.provenance
    flops = f"{show(p.model_flops_per_gpu, 'FLOP/s')} per GPU, MFU {percent(p.mfu)}, HFU {percent(p.hfu)}"
    if max(p.mfu, p.hfu) > 1.0:
        convolved = any(name.startswith("convolution") for name in facts["calibration"]["uncalibrated"])
        spared = "products that Winograd's tiles spare" if convolved else "scores that masks and windows spare"
        flops += f" ({spared} count in full)"
    if not p.model_flops:
        flops = "FLOP not known"
    kernels = "" if p.workload.unit == "image" else f"attention {facts.get('attention')}, "
    axes = _split(p)
    axes = f"{len(p.provenance['stages'])}{stages_text(p)}" if p.program.stages else axes
    rate = f"{p.tokens_per_second_per_gpu:,.0f} {p.workload.unit}s/s per GPU, " if p.tokens else ""
    what = (
        f"a recorded step, host costs of {facts.get('framework')}"
        if "program" in facts
        else f"{facts.get('schedule')}, {facts.get('microbatches')} {_microbatches(facts.get('microbatches'))}, "
        f"recompute {facts.get('recompute')}, {kernels}{facts.get('framework')}"
    )
    return Section(
        title=f"{name}: {show(p.step_time, 's')} per step (80 % band: {show(p.low, 's')} to {show(p.high, 's')})",
        lines=(
            f"{rate}{flops}",
            f"{p.world_size:,} x {_gpus(p)} of {facts.get('cluster')}: {axes}; {what}",
            *_kinds(facts.get("kinds_of_steps", ())),
        ),
    )


def _split(prediction: Prediction) -> str:
    """How ranks are divided, in the plan's own degrees: axes of the mesh are parts of these where experts are dealt out across them.

    Copies of a shard ("replica") are an axis of the mesh that no degree names.
    """
    axes = dict(prediction.program.axes)
    degrees: dict[str, int] = dict(prediction.provenance.get("degrees", {}))
    experts = degrees.pop("ep", 1)
    if experts > 1:
        copies = axes.get("replica", 1)
        axes = degrees | {"dp": degrees["dp"] // copies, "replica": copies}
    text = " x ".join(f"{axis} {size}" for axis, size in axes.items() if size > 1) or "one GPU"
    return f"{text}, experts over {experts}" if experts > 1 else text


def _kinds(kinds: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of a mean over kinds of steps: what each takes."""
    each = [f"{show(kind['step_time_s'], 's')} {kind['step']} ({percent(kind['share'])})" for kind in kinds]
    return [f"mean of steps: {', '.join(each)}; pictures show the first kind"] if each else []


def _microbatches(count: object) -> str:
    """One microbatch, several microbatches."""
    return "microbatch" if count == 1 else "microbatches"


def _gpus(prediction: Prediction) -> str:
    """The kinds of GPU, most frequent first."""
    if not prediction.ranks:
        return str(prediction.provenance.get("gpu"))
    return " and ".join(dict.fromkeys(name for kind in prediction.ranks for name in kind.gpus))


def time_section(prediction: Prediction) -> Section:
    """Return the breakdown as bars, largest part first, and the bubble."""
    p = prediction
    parts = sorted(((s, name) for name, s in p.breakdown.items() if s > 0), reverse=True)
    longest = max((s for s, _ in parts), default=1.0)
    rows = tuple((name, show(s, "s"), percent(s / p.step_time), bar(s / longest)) for s, name in parts)
    return Section(
        title="where the time goes (mean over ranks)",
        table=Table(headings=("", "", "", ""), rows=rows, left=(0, 3)),
        below=(f"bubble: {percent(p.bubble_fraction)} of the step (idle and waiting for messages, over all of it)",),
    )


def memory_section(prediction: Prediction) -> Section:
    """Return the peak of each pipeline rank by category, whether it fits, and what stands on the fullest."""
    p, memory = prediction, prediction.memory
    fullest, over = p.fullest, p.peak_memory - p.capacity
    capacities = p.capacities
    verdict = f"fits in {show(p.capacity, 'B')}"
    if over > 0:
        verdict = f"OUT OF MEMORY: rank {fullest} needs {show(over, 'B')} more than its {show(p.capacity, 'B')}"
    elif full := next((tier for tier in p.tiers if tier.over), None):
        verdict = f"OUT OF MEMORY ON {full.place.upper()}: {show(full.over, 'B')} too much on a node"
    used = [i for i in range(len(CATEGORIES)) if memory.by_category[:, i].any()]
    ranks = _some_ranks(len(memory.total), fullest)
    rows = []
    for rank in ranks:
        if rank < 0:
            rows.append(("...", *[""] * (len(used) + 2)))
            continue
        total = float(memory.total[rank])
        cells = [show(float(memory.by_category[rank, i]), "B") for i in used]
        rows.append((str(rank), show(total, "B"), percent(total / float(capacities[rank]), 0), *cells))
    names = [_SHORT.get(CATEGORIES[i], CATEGORIES[i]) for i in used]
    live = memory.live(fullest)
    tensors = [f"{s.name}{f' x {s.count}' if s.count > 1 else ''} {show(s.bytes, 'B')}" for s in live[:_MOST_TENSORS]]
    low, high = p.memory_band(fullest)
    since = float(memory.time[fullest]) - step_window(p.program, p.trace).low
    return Section(
        title=f"memory at the peak of each {'kind of' if p.ranks else 'pipeline'} rank: {verdict}",
        table=Table(headings=("rank", "total", "full", *names), rows=tuple(rows)),
        below=(
            f"fullest: rank {fullest}, {show(max(0.0, since), 's')} into the step; largest there: "
            + ", ".join(tensors),
            *(
                f"on {tier.place}: {show(tier.held, 'B')} of {show(tier.capacity, 'B')} of a node"
                for tier in p.tiers
                if tier.held
            ),
            f"80 % band of its total: {show(low, 'B')} to {show(high, 'B')}",
            *_held_free(p),
        ),
    )


def _held_free(p: Prediction) -> list[str]:
    """What to say where the allocator of the fullest rank holds clearly more than is in use."""
    if p.peak_memory > p.capacity:
        return []
    shown = device_bytes(p.memory, p.fullest, p.reserved(p.fullest))
    return (
        [f"nvidia-smi shows about {show(shown, 'B')}: the allocator keeps places that nothing fits into"]
        if shown > 1.01 * p.peak_memory
        else []
    )


def _some_ranks(count: int, fullest: int) -> list[int]:
    """Return the ranks to print; -1 stands for those left out."""
    if count <= _MOST_RANKS:
        return list(range(count))
    wanted = sorted({*range(6), *range(count - 4, count), fullest})
    out: list[int] = []
    for before, rank in zip([-1, *wanted], wanted, strict=False):
        out += [-1, rank] if rank != before + 1 else [rank]
    return out


def _staleness(old: Sequence[int], of: str) -> list[str]:
    """Of a schedule without a flush: how many updates lie between the weights of a gradient and those that it changes."""
    if not old:
        return []
    ranks = [f"{old[rank]}" if rank >= 0 else "..." for rank in _some_ranks(len(old), 0)]
    said = f"{old[0]}" if len(set(old)) == 1 else f"{', '.join(ranks)} (by {of})"
    return [f"gradients are of weights {said} updates old; steps to an accuracy are not predicted"]


def _staleness_of_nodes(updates: Mapping[str, float], bound: float | None) -> list[str]:
    """Of nodes that do not wait for each other: how many updates of others lie between a pull and a push, in the mean."""
    if not updates:
        return []
    each = ", ".join(f"{count:.3g} {which}" for which, count in updates.items())
    ahead = f", none more than {bound:g} steps ahead of the slowest" if bound else ""
    return [f"updates by others between a pull and its push: {each}{ahead}; time to an accuracy is not predicted"]


def _staleness_in_waves(waves: Mapping[str, int], bound: float | None) -> list[str]:
    """Of replicas that push what a wave changed: of how many microbatches the weights of one may lack the changes."""
    if not waves:
        return []
    ahead = f"up to {bound:g} waves ahead of the slowest" if bound else "not a wave ahead of the slowest"
    return [
        f"waves of {waves['microbatches']} microbatches, {ahead}: weights may lack the changes of {waves['local_staleness']} microbatches "
        f"of their own replica, of {waves['global_staleness']} of others; time to an accuracy is not predicted"
    ]


def unseen_words(facts: dict[str, Any]) -> str:
    """Return what of code, plan and machine widens the band of a prediction with this provenance, as a line; "" for nothing."""
    names = facts.get("unknown", ())
    if not names:
        return ""
    verb = "is" if len(names) == 1 else "are"
    unnamed = "code" in names and any(one.startswith("plan.framework = ") for one in facts.get("assumptions", ()))
    way = "; plan.framework says which code it is" if unnamed else ""
    return f"its {' and '.join(names)} {verb} assumed, or in no measured run: the band is wider for it{way}"


def sure_section(prediction: Prediction) -> Section:
    """Return what the band rests on: runs of this kind, the widest terms, what nobody measured, what was assumed."""
    facts, lines = prediction.provenance, []
    runs = facts.get("runs_of_this_kind", {})
    kind = facts.get("kind_of_run", "any")
    if runs.get("n"):
        lines.append(
            f"runs of this kind ({kind}): median error {percent(runs['median_error'])}, n = {runs['n']} runs of "
            f"{runs['sources']} sources"
        )
    else:
        lines.append(f"runs of this kind ({kind}): none measured; the spread of all kinds is used")
    lines += filter(None, [unseen_words(facts)])
    terms = sorted(prediction.spreads(slower=True).items(), key=lambda term: -term[1])[:_MOST_TERMS]
    lines.append(
        "widest terms of the band, towards slower (1 sigma): "
        + ", ".join(f"{name} {percent(sigma)}" for name, sigma in terms)
    )
    calibration = facts.get("calibration", {})
    lines.append(f"uncalibrated: {', '.join(calibration.get('uncalibrated', ())) or 'nothing'}")
    if facts.get("host_bound"):
        blocks = facts["host_bound"]
        lines.append(
            f"host-bound (the CPU launches too slowly): {', '.join(blocks[:4])}{', ...' if len(blocks) > 4 else ''}"
        )
    slowest = facts.get("slowest_gpu", {})
    if slowest.get("longer"):
        lines.append(
            f"the slowest of {slowest['of']:,} GPUs is taken to need {percent(slowest['longer'])} more for products and attention "
            f"than the middle one (cluster.gpu_spread {percent(slowest['spread'])})"
        )
    paths = facts.get("network_paths", {})
    if paths:
        lines.append(
            f"between the switches of {paths['cards']:,} network cards, which nobody described, long flows are taken to get "
            f"{percent(paths['share'])} of a card (cluster.topology says how they lie)"
        )
    lines += _staleness(facts.get("staleness", ()), "stage" if "stages" in facts else "pipeline rank")
    lines += _staleness_of_nodes(facts.get("staleness_of_nodes", {}), facts.get("staleness_bound"))
    lines += _staleness_in_waves(facts.get("waves", {}), facts.get("staleness_bound"))
    if facts.get("unsaid"):
        lines.append(f"not predicted of gradient_exchange = {facts['gradient_exchange']!r}: {facts['unsaid']}")
    lines += [f"assumed: {text}" for text in facts.get("assumptions", ())]
    lines.append(
        f"engine {facts.get('engine')}, {np.int64(prediction.program.size):,} rows; {facts.get('flush')}; dtsim {facts.get('version')}"
    )
    return Section(title="how sure", lines=tuple(lines))
