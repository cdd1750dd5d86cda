"""Watts within a step: each item of a program draws what its kernels draw, a rank that waits what waiting draws.

    products, attention   idle + (1 - idle / full) x energy per operation x operations per second, at most the power limit
    memory-bound kernels, collectives, waiting, idle    parts of the limit (calibrations/power.toml)
    what was measured, nobody says what it draws        as memory-bound kernels

The energy per operation is what the clock model of the same calibration rests on: `full_clock_power` over `reference_peak`; 8- and 4-bit
operations take their fraction of it.  So a product that the power limit slows draws the limit, in time and in watts alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.costs.gemm import gemm_class
from simulator.costs.memory_bound import MEMORY_BOUND_CLASS
from simulator.costs.tables import MEASURED_CLASS, Machine, machine_of
from simulator.hardware.cluster import Cluster
from simulator.hardware.power import Power, PowerCoefficients, load_power_coefficients
from simulator.program.calls import Convolved
from simulator.program.prices import ACCOUNTS, HOST_CLASS, PriceClass
from simulator.program.program import COMPUTE, Link
from simulator.report.mean_prediction import MeanPrediction
from simulator.report.prediction import Prediction
from simulator.report.table import Section
from simulator.units import show

__all__ = ["StepPower", "facility_watts", "least_energy", "step_power"]

_WAITING = ("host", "bubble")
_EXPOSED = ("dp", "pp")
"""Accounts in which a rank's compute stream stands idle for communication; tp, cp and ep are inside segments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPower:
    """Electricity of one step.

    Args:
        gpu: mean over GPUs and time [W]; `gpu_peak`: of the fullest instant, mean over GPUs.
        machines: all GPUs and what stands around them, mean over time [W]; `machines_peak` at that instant.
        pue, grid: facility over machines; CO2 per energy [kg/J].
        step_time, tokens: of the step; `unit`: what one of them is.
    """

    gpu: float
    gpu_peak: float
    machines: float
    machines_peak: float
    pue: float
    grid: float
    step_time: float
    tokens: int
    unit: str = "token"

    @property
    def facility(self) -> float:
        """Power with cooling and conversion [W]."""
        return self.machines * self.pue

    @property
    def energy_per_token(self) -> float:
        """Of the facility [J]."""
        return self.facility * self.step_time / self.tokens

    def to_dict(self) -> dict[str, Any]:
        """Return the value of the key `power` of `dtsim run --json`."""
        return {
            "gpu_w": {"mean": self.gpu, "peak": self.gpu_peak},
            "machines_w": {"mean": self.machines, "peak": self.machines_peak},
            "facility_w": self.facility,
            "energy_per_step_j": self.facility * self.step_time,
            "energy_per_token_j": self.energy_per_token,
            "co2_per_token_kg": self.energy_per_token * self.grid,
            "pue": self.pue,
        }

    def section(self) -> Section:
        """Return it to read."""
        gpu, around = show(self.gpu, "W"), show(self.machines, "W")
        return Section(
            title=f"power: {show(self.energy_per_token, 'J')} per {self.unit}",
            lines=(
                f"{gpu} per GPU (at most {show(self.gpu_peak, 'W')}, mean over all at one instant)",
                f"machines and network {around} (at most {show(self.machines_peak, 'W')}), facility {show(self.facility, 'W')} at "
                f"PUE {self.pue:g}",
            ),
        )


def facility_watts(gpu: float, cluster: Cluster, power: Power, loaded: bool = True) -> float:
    """Return the power of the facility [W] while each GPU draws `gpu` [W]."""
    numbers = load_power_coefficients()
    return _machines(gpu, cluster, numbers.rest if loaded else numbers.rest_idle) * (power.pue or numbers.pue)


def least_energy(seconds: float, products: Mapping[str, float], cluster: Cluster, power: Power) -> float:
    """Return energy of the facility [J] that a step of these seconds cannot be below, where all GPUs are alike.

    Nothing draws less than idle.  A product draws above it, as long as the limit lets it, energy per operation, else the limit for
    as long as it takes at the peak at least.

    Args:
        seconds: of the step at least.
        products: FLOP of matrix products of a GPU at least, mean over GPUs, by number format.

    Raises:
        SpecError: the GPU has no peak for a number format.
    """
    gpu, draw = cluster.gpu, _draw_of(machine_of(cluster), cluster)
    base = min(draw.idle, gpu.power)
    joules = base * seconds
    for dtype, flops in products.items():
        joules += flops * min(draw.part * draw.energy_of(dtype), (gpu.power - base) / gpu.peak(dtype))
    numbers = load_power_coefficients()
    rest = numbers.rest * cluster.uncapped_gpu.power * seconds
    return cluster.world_size * (joules + rest) * (power.pue or numbers.pue)


def step_power(prediction: Prediction, cluster: Cluster, power: Power) -> StepPower:
    """Return the electricity of a predicted step; where GPUs differ, all are taken to draw what the cluster's own kind draws.

    >>> from simulator.job import load_job
    >>> from simulator.simulation import simulate_job
    >>> job = load_job("gpt3_175b")
    >>> found = step_power(simulate_job(job), job.cluster, job.power)
    >>> 250 < found.gpu < found.gpu_peak <= 400
    True
    """
    if isinstance(prediction, MeanPrediction):
        return _mean_power(prediction, cluster, power)
    numbers, machine = load_power_coefficients(), machine_of(cluster)
    program, trace = prediction.program, prediction.step_trace
    limit = cluster.uncapped_gpu.power
    watts = _item_watts(prediction, machine, numbers, cluster)
    rows = np.flatnonzero(program.kind == COMPUTE)
    seconds = trace.end[rows] - trace.start[rows]
    busy, joules = np.zeros(program.ranks), np.zeros(program.ranks)
    np.add.at(busy, program.rank[rows], seconds)
    np.add.at(joules, program.rank[rows], seconds * watts[program.item[rows]])
    step = prediction.step_time
    exposed = prediction.rank_breakdown[:, [ACCOUNTS.index(name) for name in _EXPOSED]].sum(axis=1)
    exposed = np.minimum(exposed, np.maximum(step - busy, 0.0))
    waits = np.maximum(step - busy - exposed, 0.0)
    joules += (exposed * numbers.communication + waits * numbers.waiting) * limit
    mean = float(program.rank_weight @ joules / program.rank_weight.sum() / step)
    peak = _peak(program.rank_weight[program.rank[rows]], trace.start[rows], trace.end[rows], watts[program.item[rows]],
                 numbers.waiting * limit) / float(program.rank_weight.sum()) + numbers.waiting * limit  # fmt: skip
    peak = min(max(peak, mean), machine.gpu.power)  # sums of many rows may end a digit above
    return StepPower(
        gpu=mean,
        gpu_peak=peak,
        machines=_machines(mean, cluster, numbers.rest),
        machines_peak=_machines(peak, cluster, numbers.rest),
        pue=power.pue or numbers.pue,
        grid=numbers.grid if power.grid is None else power.grid,
        step_time=step,
        tokens=prediction.tokens,
        unit=prediction.workload.unit,
    )


def _mean_power(prediction: MeanPrediction, cluster: Cluster, power: Power) -> StepPower:
    """Of steps of several kinds: each by its seconds; the fullest instant of all."""
    kinds = [(kind.share, step_power(kind.prediction, cluster, power)) for kind in prediction.kinds]
    seconds = prediction.step_time
    return replace(
        kinds[0][1],
        gpu=sum(share * one.step_time * one.gpu for share, one in kinds) / seconds,
        gpu_peak=max(one.gpu_peak for _, one in kinds),
        machines=sum(share * one.step_time * one.machines for share, one in kinds) / seconds,
        machines_peak=max(one.machines_peak for _, one in kinds),
        step_time=seconds,
    )


def _machines(gpu: float, cluster: Cluster, rest: float) -> float:
    return cluster.world_size * (gpu + rest * cluster.uncapped_gpu.power)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draw:
    """What operations draw on a GPU.

    Args:
        idle: of a GPU that does nothing [W]; `full`: of one at its 16-bit peak [W].
        energy: of a 16-bit operation [J]; `narrow`: that of others over it, by number format.
    """

    idle: float
    full: float
    energy: float
    narrow: Mapping[str, float]

    @property
    def part(self) -> float:
        """Of the energy of an operation what it adds to idling."""
        return 1.0 - min(self.idle / self.full, 1.0)

    def energy_of(self, dtype: str) -> float:
        """Of an operation in a number format [J]."""
        return self.energy * self.narrow.get(dtype, 1.0)


def _draw_of(machine: Machine, cluster: Cluster) -> _Draw:
    gpu, clock = machine.gpu, machine.gemm.clock
    energy = clock.full_clock_power / clock.reference_peak
    half = max(gpu.peak_flops.get("bf16", 0.0), gpu.peak_flops.get("fp16", 0.0)) or max(gpu.peak_flops.values())
    idle = load_power_coefficients().idle * cluster.uncapped_gpu.power
    return _Draw(idle=idle, full=energy * half, energy=energy, narrow=machine.gemm.narrow_energy)


def _item_watts(
    prediction: Prediction, machine: Machine, numbers: PowerCoefficients, cluster: Cluster
) -> NDArray[np.float64]:
    """[items] mean watts of a GPU while it runs a segment."""
    prices, gpu = prediction.prices, machine.gpu
    draw = _draw_of(machine, cluster)
    idle = draw.idle

    def running(rate: float, dtype: str, least: float = 0.0) -> float:
        drawn = max(draw.energy_of(dtype) * rate, least * draw.full)
        return min(gpu.power, idle + draw.part * drawn)

    out = np.zeros(len(prediction.program.items))
    for i, item in enumerate(prediction.program.items):
        if isinstance(item, Link):
            continue
        products: dict[PriceClass, float] = defaultdict(float)
        attention = 0.0
        for table, count in item.pieces:
            for row, work in enumerate(table.work):
                if work == "gemm":
                    which = gemm_class(table.dtype[row], isinstance(table.call[row], Convolved))
                    products[which] += count * float(table.flops[row])
                elif work == "attention":
                    attention += count * float(table.flops[row])
        total = joules = 0.0
        for one, seconds in zip(prices.classes, prices.class_share[i].tolist(), strict=True):
            if seconds <= 0.0:
                continue
            if one in products:
                drawn = running(products[one] / seconds, one.which)
            elif one.kind == "attention":
                kernel = machine.attention.kernels.get(one.which)
                drawn = running(attention / seconds, "", kernel.power_share if kernel else 0.0)
            elif one in (MEMORY_BOUND_CLASS, MEASURED_CLASS):
                drawn = min(gpu.power, numbers.memory_bound * cluster.uncapped_gpu.power)
            else:
                share = numbers.waiting if one == HOST_CLASS else numbers.communication
                drawn = min(gpu.power, share * cluster.uncapped_gpu.power)
            total, joules = total + seconds, joules + seconds * drawn
        out[i] = joules / total if total else idle
    return out


def _peak(
    weight: NDArray[np.float64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    watts: NDArray[np.float64],
    waiting: float,
) -> float:
    """Most watts above waiting that all ranks draw at one instant."""
    above = weight * (watts - waiting)
    moments = np.concatenate([start, end])
    order = np.lexsort((np.concatenate([np.ones(len(start)), np.zeros(len(end))]), moments))
    return float(max(np.cumsum(np.concatenate([above, -above])[order]).max(initial=0.0), 0.0))
