"""measure(): the numbers of a step, from its trace: time with a band, memory per rank, and where every instant goes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.hardware.cluster import Cluster
from simulator.hardware.coefficients import network_paths
from simulator.hardware.fabric import fabric_of
from simulator.hardware.gpu import peak_name
from simulator.hardware.memory_residuals import load_memory_residuals
from simulator.hardware.parts import RankKind
from simulator.hardware.run_residuals import KindResidual, Unknown, load_run_residuals, run_kind
from simulator.program.critical import critical_path
from simulator.program.prices import ACCOUNTS, BLOCKED, HOST_BOUND, PriceClass, Prices, account_of
from simulator.program.program import CATEGORIES, Program
from simulator.program.trace import Trace
from simulator.report.breakdown import EXPOSED, breakdown, mean_breakdown
from simulator.report.columns import account_column, category_column
from simulator.report.frames import Record, Records, Tabular
from simulator.report.memory import MemoryReport, memory_peaks, no_places, reserved_by
from simulator.report.recomputed import recomputed_flops
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.tiers import Tier, tiers_of
from simulator.report.trained import Trained
from simulator.report.window import StepWindow, cut_trace, step_window
from simulator.workload.workload import Workload

__all__ = ["QUANTILE", "WHOLE_RUNS", "Prediction", "measure"]

QUANTILE = 1.2816
"""The 90 % quantile of the normal distribution: low and high enclose 80 %."""
WHOLE_RUNS = PriceClass("whole runs of this kind")
"""The term of the band that no single price explains."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction(Tabular):
    """What one training step takes.  Each figure is worked out from the trace when it is first asked for, and kept.

    Args:
        program: what ran; `prices`: of its items; `trace`: when.
        workload: what is trained, or what the program says of it; `cluster`: on what.
        made: what the provenance says of how the program came about.
        ranks: what each rank of the program stands for, where ranks differ; () else.
        peak_flops: dense peak of the mean GPU in the workload's number format [FLOP/s].
        unknown: what of code, plan and machine somebody had to assume; each widens the band of the step time.
        places: finds bytes of a rank's memory that are free, but of no use (`reserved_by`).
    """

    program: Program
    prices: Prices
    trace: Trace
    workload: Workload | Trained
    cluster: Cluster
    made: dict[str, Any]
    ranks: tuple[RankKind, ...] = ()
    peak_flops: float
    unknown: frozenset[Unknown] = frozenset()
    places: Callable[[int], float] = no_places

    @functools.cached_property
    def window(self) -> StepWindow:
        """Which part of the trace is one step."""
        return step_window(self.program, self.trace)

    @property
    def step_time(self) -> float:
        """Seconds of a step."""
        return self.window.step_time

    @property
    def low(self) -> float:
        """Where the 80 % band of the step time begins [s]."""
        return self.step_time * math.exp(-QUANTILE * math.hypot(self._priced, self.whole_runs.sigma_faster))

    @property
    def high(self) -> float:
        """Where the 80 % band of the step time ends [s]."""
        return self.step_time * math.exp(QUANTILE * math.hypot(self._priced, self.whole_runs.sigma_slower))

    @property
    def alike(self) -> float:
        """How slow another plan for the same code and machine may be predicted that cannot be told from this one [s].

        The band without what whole runs and what is not known of code and machine add: that is common to the two.
        """
        return self.step_time * math.exp(QUANTILE * self._priced)

    @functools.cached_property
    def sigma_classes(self) -> dict[PriceClass, float]:
        """Log spread that each price class adds to the band."""
        return _sigma_classes(self.program, self.prices, self.trace, self.window)

    @property
    def _priced(self) -> float:
        return math.hypot(*self.sigma_classes.values())

    @functools.cached_property
    def kind_of_run(self) -> str:
        """What whole runs this one is like, by its axes and what it gathers."""
        gathered = any(t.category == "gathered" for effect in self.program.effects for t in effect.tensors)
        axes: dict[str, int] = {}
        for name, size in self.program.axes:
            axis = account_of((name,))
            axes[axis] = axes.get(axis, 1) * size
        return run_kind(axes, gathered, _sparse(self.workload))

    @property
    def unseen(self) -> frozenset[Unknown]:
        """What had to be assumed, and whether no measured run stands behind the code's profile or the machine."""
        return self.unknown | load_run_residuals().unseen(str(self.made.get("framework", "")), self.cluster.machine)

    @property
    def whole_runs(self) -> KindResidual:
        """Log spread that whole runs of this kind, with what was assumed of this one, add to the band, on either side."""
        return load_run_residuals().of(self.kind_of_run, self.unseen)

    @property
    def world_size(self) -> int:
        """GPUs."""
        return self.cluster.world_size

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.workload.tokens

    @property
    def model_flops(self) -> float:
        """FLOP of the model in a step (full attention, no recompute)."""
        return _model_flops(self.workload)

    @functools.cached_property
    def hardware_flops(self) -> float:
        """As `model_flops`, with what is run a second time."""
        return self.model_flops + recomputed_flops(self.program) / self._unrolled

    @functools.cached_property
    def rank_breakdown(self) -> NDArray[np.float64]:
        """[ranks, accounts] seconds."""
        return breakdown(self.program, self.prices, self.trace, self._within) / self.window.steps

    @functools.cached_property
    def breakdown(self) -> dict[str, float]:
        """Seconds by account, mean over real ranks; sums to step_time."""
        return mean_breakdown(self.program, self.rank_breakdown)

    @functools.cached_property
    def memory(self) -> MemoryReport:
        """Peaks per pipeline rank."""
        room = np.array([kind.memory for kind in self.ranks]) if self.ranks else self.cluster.gpu.usable_memory
        return memory_peaks(self.program, self.trace, self._within, capacity=room)

    @property
    def capacity(self) -> float:
        """Memory of the GPU [B]; where GPUs differ, of the rank that is fullest by its own."""
        return self.ranks[self.fullest].memory if self.ranks else self.cluster.gpu.usable_memory

    @functools.cached_property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers below the GPUs' memory: the host's, and its drives."""
        return tiers_of(self.program, self.cluster, self.ranks)

    @property
    def host_memory(self) -> float:
        """What the GPUs of the fullest node have put into its host's memory [B]."""
        return self.tiers[0].held

    @functools.cached_property
    def provenance(self) -> dict[str, Any]:
        """What the figures rest on."""
        return {**self.made, **_facts(self, self._unrolled)}

    @property
    def _within(self) -> tuple[float, float] | None:
        return None if self.window.whole else (self.window.low, self.window.high)

    @property
    def _unrolled(self) -> int:
        """Steps that run into each other in the trace."""
        return int(self.program.step.max(initial=0)) + 1

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """Tokens per second and GPU."""
        return self.tokens / self.step_time / self.world_size

    @property
    def model_flops_per_gpu(self) -> float:
        """Model FLOP/s per GPU (full attention, no recompute)."""
        return self.model_flops / self.step_time / self.world_size

    @property
    def mfu(self) -> float:
        """Model FLOP/s over the dense peak of the GEMM dtype."""
        return self.model_flops_per_gpu / self.peak_flops

    @property
    def hfu(self) -> float:
        """As mfu, with the recomputed FLOP."""
        return self.hardware_flops / self.step_time / self.world_size / self.peak_flops

    @property
    def bubble_fraction(self) -> float:
        """Part of the step in which a rank waits for the pipeline, messages included."""
        return (self.breakdown["bubble"] + self.breakdown["pp"]) / self.step_time

    @property
    def bubble_overhead(self) -> float:
        """The same idle time over the rest of the step."""
        idle = self.breakdown["bubble"] + self.breakdown["pp"]
        return idle / (self.step_time - idle) if self.step_time > idle else math.inf

    @property
    def exposed_communication(self) -> dict[str, float]:
        """Seconds by kind of communication that nothing hides."""
        return {name: self.breakdown[name] for name in EXPOSED}

    @property
    def peak_memory(self) -> float:
        """Bytes on the fullest rank."""
        return float(self.memory.total[self.fullest]) if self.ranks else float(self.memory.total.max())

    @property
    def capacities(self) -> NDArray[np.float64]:
        """[ranks] memory of the smallest GPU of each rank of the program [B]."""
        if not self.ranks:
            return np.full(len(self.memory.total), self.capacity)
        return np.array([kind.memory for kind in self.ranks])

    @property
    def fullest(self) -> int:
        """The rank whose peak is the largest part of its GPU's memory; the lowest such number."""
        if len({kind.memory for kind in self.ranks}) < 2:
            return self.memory.fullest
        return int(np.argmax(self.memory.total / self.capacities))

    def reserved(self, rank: int) -> float:
        """Return what the allocator of a rank holds at most [B], context left out: more than its tensors, by places of no use."""
        return reserved_by(self.memory, rank, self.places(rank), float(self.capacities[rank]))

    def memory_band(self, rank: int, categories: tuple[str, ...] = CATEGORIES) -> tuple[float, float]:
        """Return the 80 % band of a rank's peak [B], of these categories alone (design 5b O)."""
        row = self.memory.by_category[rank]
        parts = {name: float(b) for name, b in zip(CATEGORIES, row, strict=True) if name in categories}
        width = QUANTILE * load_memory_residuals().sigma(parts, "code" in self.unseen)
        total = sum(parts.values())
        return total * math.exp(-width), total * math.exp(width)

    def spreads(self, slower: bool) -> dict[PriceClass, float]:
        """Return the log spread of each term of the band, price classes and `WHOLE_RUNS`, on the side of slower or of faster runs."""
        whole = self.whole_runs.sigma_slower if slower else self.whole_runs.sigma_faster
        return {**self.sigma_classes, WHOLE_RUNS: whole}

    @property
    def step_trace(self) -> Trace:
        """The trace of one step: all of it, or the window of the steady state where steps run into each other."""
        return cut_trace(self.program, self.trace)

    @property
    def fits(self) -> bool:
        """Whether every rank's peak fits its GPU, and what was put on the hosts and their drives fits them."""
        return self.peak_memory <= self.capacity * (1.0 + 2.0**-40) and not any(tier.over for tier in self.tiers)

    def tables(self) -> dict[str, Records]:
        """`step`: one row; `breakdown`: seconds by account, a row per rank; `memory`: bytes by category at each rank's peak."""
        return {"step": lambda: [self.record()], "breakdown": self._time_records, "memory": self._memory_records}

    def record(self) -> dict[str, Any]:
        """Return the row of the table `step`."""
        low, high = self.memory_band(self.fullest)
        return {
            "step_time_s": self.step_time,
            "low_s": self.low,
            "high_s": self.high,
            "gpus": self.world_size,
            "tokens_per_second": self.tokens / self.step_time,
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "model_flops_per_second_per_gpu": self.model_flops_per_gpu,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "bubble_fraction": self.bubble_fraction,
            "exposed_communication_s": sum(self.exposed_communication.values()),
            "peak_memory_bytes": self.peak_memory,
            "memory_low_bytes": low,
            "memory_high_bytes": high,
            "memory_capacity_bytes": self.capacity,
            "host_memory_bytes": self.host_memory,
            "nvme_bytes": self.tiers[1].held,
            "fits": self.fits,
        }

    def _time_records(self) -> list[Record]:
        weights = self.program.rank_weight.tolist()
        return [
            {"rank": rank, "replicas": int(weight), "step_time_s": self.step_time}
            | {account_column(name): float(s) for name, s in zip(ACCOUNTS, row, strict=True)}
            for rank, (weight, row) in enumerate(zip(weights, self.rank_breakdown, strict=True))
        ]

    def _memory_records(self) -> list[Record]:
        return [
            {"rank": rank, "peak_memory_bytes": float(row.sum()), "memory_capacity_bytes": float(capacity)}
            | {category_column(name): float(b) for name, b in zip(CATEGORIES, row, strict=True)}
            for rank, (row, capacity) in enumerate(zip(self.memory.by_category, self.capacities, strict=True))
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim run`."""
        peaks: list[dict[str, Any]] = [
            {"pipeline_rank": r, "total": float(row.sum()), "allocated": float(self.memory.allocated[r])}
            | {name: float(b) for name, b in zip(CATEGORIES, row, strict=True)}
            for r, row in enumerate(self.memory.by_category)
        ]
        for entry, kind in zip(peaks, self.ranks, strict=False):
            entry |= {"pipeline_rank": kind.pipeline_rank, "replicas": kind.replicas, "gpus": list(kind.gpus)}
            entry |= {"capacity": kind.memory}
        from simulator.units import in_unit

        return {
            "schema_version": SCHEMA_VERSION,
            "step_time_s": {"value": self.step_time, "low": self.low, "high": self.high},
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "model_tflops_per_gpu": in_unit(self.model_flops_per_gpu, "TFLOP/s", "FLOP/s"),
            "mfu": self.mfu,
            "hfu": self.hfu,
            "flop_convention": "full attention (not causal, windows ignored), no recompute in mfu, dense peak of the GEMM dtype",
            "bubble_fraction": self.bubble_fraction,
            "bubble_overhead": self.bubble_overhead,
            "exposed_communication_s": self.exposed_communication,
            "breakdown_s": self.breakdown,
            "peak_memory_bytes": peaks,
            "peak_memory_band_bytes": [
                {"pipeline_rank": peak["pipeline_rank"]} | dict(zip(("low", "high"), self.memory_band(r), strict=True))
                for r, peak in enumerate(peaks)
            ],
            "memory_capacity_bytes": self.capacity,
            "host_memory_bytes": self.host_memory,
            "nvme_bytes": self.tiers[1].held,
            "fits": self.fits,
            "band": {
                "sigma_by_class": {str(which): sigma for which, sigma in self.sigma_classes.items()},
                "sigma_whole_runs": {
                    "slower": self.whole_runs.sigma_slower,
                    "faster": self.whole_runs.sigma_faster,
                },
                "quantile": QUANTILE,
            },
            "world_size": self.world_size,
            "provenance": self.provenance,
        }


def measure(
    trace: Trace,
    program: Program,
    prices: Prices,
    workload: Workload | Trained,
    cluster: Cluster,
    provenance: dict[str, Any] | None = None,
    ranks: tuple[RankKind, ...] = (),
    places: Callable[[int], float] = no_places,
) -> Prediction:
    """Return the numbers of a run, each worked out when it is asked for; `ranks` says what each rank of the program stands for, where
    ranks differ, `places` what of its memory is of no use.

    `workload` is what was trained, or what the program itself says of it (`trained_by`).

    The band (design 5b O): errors are common within a price class and independent between classes; a class weighs by its share
    of the critical path; to them comes the spread of whole runs of this kind, which is not the same on both sides.
    """
    gemm = workload.gemm if isinstance(workload, Trained) else workload.numbers.gemm
    return Prediction(
        program=program,
        prices=prices,
        trace=trace,
        workload=workload,
        cluster=cluster,
        made=provenance or {},
        ranks=ranks,
        places=places,
        peak_flops=_peak(program, ranks, gemm) if ranks else cluster.gpu.peak(gemm),
    )


def _facts(prediction: Prediction, unrolled: int) -> dict[str, object]:
    """What the run itself adds to the provenance."""
    program, prices, cluster, whole = prediction.program, prediction.prices, prediction.cluster, prediction.whole_runs
    known: dict[bool, list[str]] = {False: [], True: []}
    for which, good in zip(prices.classes, prices.calibrated, strict=True):
        known[good].append(str(which))
    return {
        "engine": prediction.trace.engine,
        "flush": _flush_words(prediction.window, unrolled),
        "slowest_gpu": {"spread": cluster.gpu_spread, "of": cluster.world_size, "longer": cluster.slowest_gpu},
        "network_paths": network_paths(fabric_of(cluster)),
        "kind_of_run": prediction.kind_of_run,
        "unknown": sorted(prediction.unseen),
        "runs_of_this_kind": {"median_error": whole.median, "n": whole.runs, "sources": whole.sources},
        "calibration": {
            "uncalibrated": sorted(known[False]),
            "calibrated": sorted(known[True]),
            "models": sorted(set(prices.model) - {"kernels", HOST_BOUND, BLOCKED}),
        },
        "host_bound": sorted(
            {item.name for item, m in zip(program.items, prices.model, strict=True) if m == HOST_BOUND}
        ),
        "placement": {
            item.name: p for item, p in zip(program.items, prices.placement, strict=True) if p and "leave" in p
        },
    }


def _flush_words(window: StepWindow, unrolled: int) -> str:
    if window.whole:
        return "synchronous step"
    return f"no flush of all ranks: steady state, measured in the middle of {unrolled} steps that run into each other"


def _peak(program: Program, ranks: tuple[RankKind, ...], dtype: str) -> float:
    """Dense peak of the mean GPU [FLOP/s]."""
    name = peak_name(dtype)
    return float(np.average([kind.peak_flops[name] for kind in ranks], weights=program.rank_weight))


def _sigma_classes(program: Program, prices: Prices, trace: Trace, window: StepWindow) -> dict[PriceClass, float]:
    """Per class: its share of the critical path times its sigma."""
    path = window.ending(critical_path(program, prices, trace), trace)
    seconds = prices.class_share[program.item[path]].sum(axis=0)
    length = window.high - window.low
    share = seconds / length if length else seconds
    parts = zip(prices.classes, share, prices.sigma, strict=True)
    return {which: float(part * sigma) for which, part, sigma in parts if part > 0}


@functools.lru_cache(maxsize=64)
def _model_flops(workload: Workload | Trained) -> float:
    return workload.model_flops


def _sparse(workload: Workload | Trained) -> bool:
    return workload.sparse if isinstance(workload, Trained) else workload.model.experts > 0
