"""What a run costs: days, goodput, where the lost time went, GPU-hours, price, energy and CO2, as JSON and to read."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.energy.step_power import facility_watts, step_power
from simulator.goodput.describe import Described
from simulator.goodput.interval import BestInterval
from simulator.goodput.levers import Lever
from simulator.goodput.run_model import ACCOUNTS, MAINTENANCE, Runs
from simulator.hardware.power import load_power_coefficients
from simulator.job import Job
from simulator.report.frames import Record, Records, Tabular
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.table import Section, Table, amount, bar, percent
from simulator.studies.neighbours import Beside
from simulator.units import in_unit, show

__all__ = ["Goodput", "energy_of", "training_watts"]

_QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
_HOURS = 10_000.0
"""Seconds from which a time is told in hours."""
_HANGS = ("detection", "checkpoint")
"""Accounts in which GPUs wait in a kernel; in the others they are idle."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Goodput(Tabular):
    """Runs of a job.

    Args:
        job: which.
        described: its numbers.
        runs: what came of them.
        seed: of the failures.
        asked: samples that were asked for.
        stopped: whether the user stopped before all was done: fewer runs, or no levers.
        interval: the best, where it was asked for or could be found.
        levers: what single changes would buy, largest first.
        beside: the neighbours; None without.
    """

    job: Job
    described: Described
    runs: Runs
    seed: int
    asked: int
    stopped: bool
    interval: BestInterval | None
    levers: tuple[Lever, ...]
    beside: Beside | None = None

    @property
    def gpu_hours(self) -> float:
        """GPUs of all sites times mean hours; spares are apart."""
        return in_unit(float(self.runs.wall.mean()), "h", "s") * self.gpus

    @property
    def spare_gpu_hours(self) -> float:
        """GPUs of machines that stand by times mean hours."""
        model = self.runs.model
        spares = self.job.cluster.gpus_per_node * (max(model.spares, 0) + model.cold_spares)
        return self.gpu_hours / self.gpus * spares

    @property
    def gpus(self) -> int:
        """GPUs of all sites."""
        return self.job.cluster.world_size * self.described.sites

    @property
    def price(self) -> float | None:
        """Dollars of these; None where the cluster's file has no price."""
        each = self.job.cluster.price_per_gpu_hour
        return None if each is None else self.gpu_hours * each

    @property
    def energy(self) -> float:
        """Mean energy of the facility [J]."""
        return energy_of(self.job, self.described, self.runs)

    @property
    def interruptions(self) -> dict[str, float]:
        """Mean number by component, most first."""
        found: Counter[str] = Counter()
        names = (*self.runs.model.causes.name, MAINTENANCE)
        for name, mean in zip(names, self.runs.interruptions.mean(axis=0).tolist(), strict=True):
            if name != MAINTENANCE or mean:
                found[name] += mean
        return dict(found.most_common())

    @property
    def lost(self) -> dict[str, float]:
        """Mean seconds by account."""
        return dict(zip(ACCOUNTS, self.runs.lost.mean(axis=0).tolist(), strict=True))

    def tables(self) -> dict[str, Records]:
        """`runs`: a row per simulated run; `interruptions`: their mean number by component; `lost`: mean seconds by account."""
        return {
            "runs": self._runs,
            "interruptions": lambda: [{"component": k, "interruptions": v} for k, v in self.interruptions.items()],
            "lost": lambda: [{"account": k, "lost_s": v} for k, v in self.lost.items()],
        }

    def _runs(self) -> list[Record]:
        stops, lost = self.runs.interruptions.sum(axis=1).tolist(), self.runs.lost.sum(axis=1).tolist()
        rows = zip(self.runs.wall.tolist(), self.runs.goodput.tolist(), stops, lost, strict=True)
        return [dict(zip(("wall_s", "goodput", "interruptions", "lost_s"), row, strict=True)) for row in rows]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer of `dtsim goodput`."""
        from simulator import __version__

        d, cluster = self.described, self.job.cluster
        prediction = d.prediction
        numbers = load_power_coefficients()
        tokens = self.runs.done / d.step * d.tokens_per_step
        grid = numbers.grid if self.job.power.grid is None else self.job.power.grid
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "goodput",
            "job": self.job.name,
            "samples": len(self.runs),
            "samples_asked": self.asked,
            "stopped": self.stopped,
            "seed": self.seed,
            "days": _spread(np.array([in_unit(s, "d", "s") for s in self.runs.wall.tolist()])),
            "goodput": _spread(self.runs.goodput),
            "interruptions": self.interruptions,
            "lost_s": self.lost,
            "waits_for_machines": float(self.runs.waits.mean()),
            "tokens": _spread(tokens),
            "steps": float(self.runs.done.mean() / d.step),
            "fits": prediction.fits,
            "step_time_s": {"value": d.step, "low": prediction.low, "high": prediction.high},
            "gpu_hours": self.gpu_hours,
            "spare_gpu_hours": self.spare_gpu_hours,
            "price": self.price,
            "price_per_gpu_hour": cluster.price_per_gpu_hour,
            "energy_j": self.energy,
            "co2_kg": self.energy * grid,
            "power": step_power(prediction, cluster, self.job.power).to_dict(),
            "checkpoint": self._checkpoint(),
            "sites": None if d.exchange is None else d.exchange.to_dict(),
            "levers": [lever.to_dict() for lever in self.levers],
            "provenance": {
                "version": __version__,
                "cluster": cluster.name,
                "gpu": cluster.gpu.name,
                "framework": prediction.provenance["framework"],
                "assumptions": [*self.job.assumptions, *d.assumptions],
                "fleet": self.job.reliability.fleet if self.job.reliability else None,
            },
        } | (self.beside.to_dict() if self.beside else {})

    def _checkpoint(self) -> dict[str, Any] | None:
        cost, model = self.described.cost, self.runs.model
        if cost is None:
            return None
        return {
            "bytes": cost.bytes,
            "stall_s": cost.stall,
            "safe_after_s": cost.delay,
            "interval_s": min(model.interval, model.work),
            "best_interval": None if self.interval is None else self.interval.to_dict(),
        }

    def sections(self) -> list[Section]:
        """Return the answer to read."""
        out = [self._head(), self._time(), self._failures()]
        out += [] if self.described.exchange is None else [self.described.exchange.section()]
        out += [self.beside.section()] if self.beside else []
        out += [self._saving()] if self.described.cost is not None else []
        out += [self._money()]
        out += [_levers(self.levers)] if self.levers else []
        notes = (*self.job.assumptions, *self.described.assumptions)
        return [*out, Section(title="taken for granted", lines=notes)] if notes else out

    def _head(self) -> Section:
        d, wall = self.described, self.runs.wall
        days, low, high = (amount(in_unit(float(v), "d", "s")) for v in (wall.mean(), *np.quantile(wall, (0.1, 0.9))))
        good = self.runs.goodput
        goal = (
            f"{show(d.tokens, '').strip()} tokens: {days} days (p10 {low}, p90 {high})"
            if d.tokens is not None
            else f"{days} days: {show(float((self.runs.done / d.step).mean()) * d.tokens_per_step, '').strip()} tokens"
        )
        cut = f" of {self.asked:,} asked for" if len(self.runs) < self.asked else ""
        return Section(
            title=f"{self.job.name}, {goal}",
            lines=(
                f"goodput {percent(float(good.mean()))} (p10 {percent(float(np.quantile(good, 0.1)))}, p90 "
                f"{percent(float(np.quantile(good, 0.9)))}): time of useful steps over all time",
                f"{self.gpus:,} GPUs, {show(d.step, 's')} per step ({self._exchange()}band {show(d.prediction.low, 's')} to "
                f"{show(d.prediction.high, 's')}, not in the days); {len(self.runs):,} runs{cut}, seed {self.seed}",
            ),
        )

    def _exchange(self) -> str:
        found = self.described.exchange
        return "" if found is None else f"{show(found.exposed, 's')} of it between sites; a site's own: "

    def _time(self) -> Section:
        wall = float(self.runs.wall.mean())
        parts = {"useful steps": float(self.runs.done.mean()), **self.lost}
        rows = tuple(
            (name, f"{in_unit(seconds, 'h', 's'):,.1f} h", percent(seconds / wall, 2), bar(seconds / wall))
            for name, seconds in parts.items()
            if seconds > 0.0
        )
        return Section(title="where the time goes", table=Table(headings=("", "mean", "", ""), rows=rows, left=(0, 3)))

    def _failures(self) -> Section:
        found, wall = self.interruptions, float(self.runs.wall.mean())
        total = sum(found.values())
        rows = tuple((name, f"{count:,.1f}", percent(count / total)) for name, count in found.items() if count > 0.0)
        waits = float(self.runs.waits.mean())
        below = (f"{waits:,.1f} of them waited for a machine",) if waits else ()
        every = f", one every {in_unit(wall / total, 'h', 's'):,.1f} h" if total else ""
        return Section(
            title=f"interruptions: {total:,.1f}{every}",
            table=Table(headings=("component", "mean", ""), rows=rows),
            below=below,
        )

    def _saving(self) -> Section:
        cost, model, best = self.described.cost, self.runs.model, self.interval
        if cost is None:
            return Section(title="checkpoints")
        every = f"one every {_long(model.interval)} of training"
        if math.isinf(model.interval):
            every = "none is taken, for nothing stops the job"
        lines = [
            f"{show(cost.bytes, 'B')} each; training stands {show(cost.stall, 's')}, safe after {show(cost.delay, 's')}; {every}",
        ]
        if model.interval < cost.stall + cost.write and cost.near < 0.0:
            lines.append("a checkpoint is not safe when the next one is due: training waits for it")
        if best is not None:
            lines.append(
                f"best interval by simulation {show(best.simulated, 's')}; by formulas for the {show(cost.stall, 's')} that training "
                f"stands: Young {show(best.young, 's')}, Daly {show(best.daly, 's')}, exact for constant rates {show(best.exact, 's')}"
            )
        return Section(title="checkpoints", lines=tuple(lines))

    def _money(self) -> Section:
        price = "no price known" if self.price is None else f"{amount(self.price)} $"
        spares = f"; {amount(self.spare_gpu_hours)} GPU-hours of spares are not in it" if self.spare_gpu_hours else ""
        answer = self.to_dict()
        return Section(
            title="cost",
            lines=(
                f"{amount(self.gpu_hours)} GPU-hours, {price}{spares}",
                f"{amount(in_unit(self.energy, 'MWh', 'J'))} MWh, {amount(in_unit(answer['co2_kg'], 't', 'kg'))} t of CO2; "
                f"{show(training_watts(self.job, self.described), 'W')} while it trains",
            ),
        )


def _long(seconds: float) -> str:
    """A time that may be weeks."""
    return f"{in_unit(seconds, 'h', 's'):,.1f} h" if seconds >= _HOURS else show(seconds, "s")


def training_watts(job: Job, described: Described) -> float:
    """Return what the facilities of all sites draw while they train [W]."""
    return described.sites * _site_watts(job, described, _waiting_watts(job))


def _site_watts(job: Job, described: Described, waiting: float) -> float:
    """What a site's facility draws while it trains; its GPUs wait in a kernel while sites exchange."""
    power = step_power(described.prediction, job.cluster, job.power).facility
    if described.exchange is None:
        return power
    waits = described.exchange.exposed / described.exchange.step
    return power * (1.0 - waits) + waiting * waits


def _waiting_watts(job: Job) -> float:
    """What a site's facility draws while all its GPUs wait in a kernel."""
    return facility_watts(load_power_coefficients().waiting * job.cluster.gpu.power, job.cluster, job.power)


def energy_of(job: Job, described: Described, runs: Runs) -> float:
    """Return the mean energy of the facility over a run [J]: training, waiting in kernels, and idle while it restarts."""
    numbers, cluster = load_power_coefficients(), job.cluster
    hanging = _waiting_watts(job)
    training = _site_watts(job, described, hanging)
    idle = facility_watts(numbers.idle * cluster.gpu.power, cluster, job.power, loaded=False)
    lost = dict(zip(ACCOUNTS, runs.lost.mean(axis=0).tolist(), strict=True))
    trains = float(runs.done.mean()) + lost["rework"] + lost["slow"]
    hangs = sum(lost[name] for name in _HANGS)
    rests = float(runs.wall.mean()) - trains - hangs
    return float(described.sites * (training * trains + hanging * hangs + idle * max(rests, 0.0)))


def _spread(values: NDArray[np.float64]) -> dict[str, float]:
    return {"mean": float(values.mean())} | {
        name: float(np.quantile(values, part)) for name, part in _QUANTILES.items()
    }


def _levers(levers: tuple[Lever, ...]) -> Section:
    rows = tuple(
        (
            lever.name,
            lever.change,
            f"{lever.goodput - lever.before:+.2%}".replace("%", " %"),
            f"{in_unit(lever.saves, 'd', 's'):+,.2f} d",
        )
        for lever in levers
    )
    return Section(
        title="what single changes would buy",
        table=Table(headings=("", "", "goodput", "days saved"), rows=rows, left=(0, 1)),
    )
