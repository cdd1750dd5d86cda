"""A space of plans: fields and the values that each may take; a plan per combination, everything else as in the job.

    ranges   plan.tensor_parallel = 1, 2, 4, 8    plan.zero_stage = 0, 1    workload.precision = bf16, fp8    cluster.gpus = 64, 128

Replicas are what a plan's degrees leave of the world, unless `plan.data_parallel` is ranged, fixed or they stay as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.aliases import explained, renamed
from simulator.errors import SpecError, UnknownNameError
from simulator.hardware.cluster import Cluster, ClusterChanges, load_cluster
from simulator.hardware.parts import Part
from simulator.hardware.power import Power
from simulator.job import Job, check_equal_stages, parse_value
from simulator.lowering.exchanges import EXCHANGES
from simulator.partition.strategies import STRATEGIES
from simulator.plan.framework import load_framework
from simulator.plan.plan import Plan
from simulator.plan.recompute_policy import load_recompute_policy
from simulator.schedules import SCHEDULES
from simulator.search.defaults import Offered, offered_ranges
from simulator.search.fitted import fitted_split
from simulator.search.split import BALANCED, FITTED, SPLIT, TIMED, timed_split
from simulator.specs import validate_spec
from simulator.specs.toml_text import toml_value
from simulator.workload.optimizers import OPTIMIZERS
from simulator.workload.precision import precision_named

__all__ = [
    "DEGREES",
    "MOST_PLANS",
    "Point",
    "Space",
    "make_space",
    "read_ranges",
    "table_ranges",
    "that_keep_batch",
    "with_batch",
    "with_replicas",
]

MOST_PLANS = 10_000_000
"""Plans of the largest space that is searched."""
DEGREES = ("plan.tensor_parallel", "plan.context_parallel", "plan.pipeline_parallel")
"""Fields that split the GPUs; what they leave are replicas."""
_WORKLOAD = ("global_batch_size", "precision", "optimizer", "sequence_length")
_GPUS = "cluster.gpus"
_CLUSTER = "cluster.name"
_BATCH = "workload.global_batch_size"
_PRECISION = "workload.precision"


_SPLITS = {TIMED: timed_split, FITTED: fitted_split}
"""Splits that depend on the plan, by their word."""


@dataclass(frozen=True, slots=True)
class Point:
    """One plan of a space: its number, and field -> value of what is ranged."""

    number: int
    values: Mapping[str, Any]

    @property
    def settings(self) -> list[str]:
        """As `--set` arguments; a split by time as the word for it (`settings_of` has its layers)."""
        some = {field: value for field, value in self.values.items() if value not in (None, BALANCED)}
        return [f"{field}={setting_value(value)}" for field, value in some.items()]

    @property
    def dealt_out(self) -> bool:
        """Whether a word deals its layers out, by what else it is."""
        return self.values.get(SPLIT) in tuple(_SPLITS)

    @property
    def balanced(self) -> Point:
        """The same plan with its layers left open, where a word deals them out; itself where none does."""
        return Point(self.number, {**self.values, SPLIT: BALANCED}) if self.dealt_out else self

    def settings_of(self, job: Job) -> list[str]:
        """As `--set` arguments that any verb takes, for the job that this plan is."""
        point = Point(self.number, {**self.values, SPLIT: job.plan.layer_split})
        return that_keep_batch(job, with_replicas(job, (point if self.dealt_out else self).settings))


def that_keep_batch(job: Job, settings: list[str]) -> list[str]:
    """Return settings that leave a job its global batch, also where that follows from the replicas and they change those."""
    moves = {*DEGREES, "plan.data_parallel", _GPUS} & {setting.partition("=")[0] for setting in settings}
    return with_batch(job, settings) if job.batch_follows and moves else settings


def with_replicas(job: Job, settings: list[str]) -> list[str]:
    """Return settings that say a plan's replicas, where they change them and the job that was searched says how many it has."""
    said = {setting.partition("=")[0] for setting in settings}
    told = job.replicas_told and job.plan.data_parallel is None and "plan.data_parallel" not in said
    if not (told and {*DEGREES, _GPUS} & said):
        return settings
    return [*settings, f"plan.data_parallel={job.cluster.world_size // job.plan.model_parallel_size}"]


def with_batch(job: Job, settings: list[str]) -> list[str]:
    """Return settings that say a job's global batch."""
    said = f"{_BATCH}={job.workload.global_batch_size}"
    return settings if any(setting.startswith(f"{_BATCH}=") for setting in settings) else [*settings, said]


def setting_value(value: object) -> str:
    """Return a value as a setting takes it.

    >>> setting_value(["layernorm", "mlp"]), setting_value((13, 9)), setting_value(True)
    ('["layernorm","mlp"]', '[13,9]', 'true')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(toml_value(one) if isinstance(one, str) else setting_value(one) for one in value)}]"
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Space:
    """What is searched.

    Args:
        job: everything that is neither ranged nor fixed, with what is fixed applied.
        ranges: field -> its values, in the order in which they were given.
        moves: whether replicas are counted anew for every plan.
        fixed: field -> value of what is fixed, as the job has it.
        offered: whether the ranges were made here: plans that are there twice are refused once.
        by_framework: whether plans that the job's framework does not run are refused.
        left_out: field -> values that would be in the ranges if the framework ran them.
        untried: field -> values that would be there if the space were not too large then.
    """

    job: Job
    ranges: Mapping[str, tuple[Any, ...]]
    moves: bool
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    offered: bool = False
    by_framework: bool = False
    left_out: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    untried: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    strides: Mapping[str, int] = dataclasses.field(init=False)
    """Field -> by how much a plan's number grows with the place of its value."""

    def __post_init__(self) -> None:
        strides, stride = dict[str, int](), 1
        for field in reversed([*self.ranges]):
            strides[field] = stride
            stride *= len(self.ranges[field])
        object.__setattr__(self, "strides", strides)

    @property
    def size(self) -> int:
        """How many plans."""
        return math.prod(len(values) for values in self.ranges.values())

    def points(self) -> Iterator[Point]:
        """Yield every plan, the last field's values first."""
        names = list(self.ranges)
        for number, values in enumerate(itertools.product(*self.ranges.values())):
            yield Point(number, dict(zip(names, values, strict=True)))

    def at(self, number: int) -> Point:
        """Return the plan of this number."""
        found: dict[str, Any] = dict.fromkeys(self.ranges)
        left = number
        for name in [*self.ranges][::-1]:
            many = self.ranges[name]
            left, place = divmod(left, len(many))
            found[name] = many[place]
        return Point(number, found)

    def number(self, values: Mapping[str, Any]) -> int:
        """Return the number of the plan with these values."""
        number = 0
        for name, many in self.ranges.items():
            number = number * len(many) + many.index(values[name])
        return number

    def place(self, number: int, field: str) -> int:
        """Return which of a field's values the plan of this number has."""
        return number // self.strides[field] % len(self.ranges[field])

    def job_of(self, point: Point) -> Job:
        """Return a plan as a job.

        Raises:
            SimulatorError: the values together cannot be.
        """
        plan: dict[str, Any] = {"data_parallel": None} if self.moves else {}
        workload: dict[str, Any] = {}
        cluster, own = self.job.cluster, f" on {self.job.cluster.name}"
        for field, value in point.values.items():
            table, key = _parts(field)
            if table == "cluster":
                gpus = point.values.get(_GPUS, self.job.cluster.world_size)
                cluster = (
                    on_cluster(self.job, point.values[_CLUSTER], gpus)
                    if _CLUSTER in point.values
                    else cluster.resized(gpus)
                )
            else:
                (plan if table == "plan" else workload)[key] = value
        split = plan.get("layer_split")
        if split in (BALANCED, *_SPLITS):
            plan["layer_split"] = None
        made = replace(
            self.job,
            plan=self.job.plan.model_copy(update={key: _choice(key, value) for key, value in plan.items()}),
            workload=replace(self.job.workload, **workload) if workload else self.job.workload,
            cluster=cluster,
            power=cluster.electricity(power_said(self.job)),
            name=self.job.name.removesuffix(own) + f" on {cluster.name}"
            if self.job.name.endswith(own)
            else self.job.name,
            replicas_told=self.job.replicas_told or self.job.plan.data_parallel is not None,
        )
        if split in tuple(_SPLITS):
            return replace(made, plan=made.plan.model_copy(update={"layer_split": _SPLITS[split](made)}))
        return made


@functools.lru_cache(maxsize=256)
def _parts(field: str) -> tuple[str, str]:
    """The table of a job that a field is in, and its key there."""
    table, _, key = field.partition(".")
    return table, key


def _choice(field: str, value: object) -> Any:
    """A value as its field of a plan holds it; rules between fields are not the plan's but those of `resolve`."""
    return _read(field, value) if isinstance(value, list) else _read_once(field, value)


def _read(field: str, value: Any) -> Any:
    return getattr(validate_spec({field: value}, Plan, "this plan"), field)


_read_once = functools.lru_cache(maxsize=4096, typed=True)(_read)


def read_ranges(texts: Sequence[str], option: str = "--range") -> dict[str, tuple[object, ...]]:
    """Return field -> values of `FIELD=V,V,...`, other programs' names for a field too; lists and texts in quotes are one value each.

    Raises:
        SpecError: malformed, twice the same field or value, or no field of that name.

    >>> read_ranges(["tp=1,2", "zero_stage=0,1"])
    {'plan.tensor_parallel': (1, 2), 'plan.zero_stage': (0, 1)}
    """
    out: dict[str, tuple[object, ...]] = {}
    for text in texts:
        field, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise SpecError(f"{option} {text[:80]!r}: expected FIELD=V,V,... such as plan.tensor_parallel=1,2,4,8")
        name = _field(field.strip())
        if name in out:
            way = "one list with all its values" if option == "--range" else f"--range {name}=V,V"
            raise SpecError(f"{option}: {name} is given twice. Way out: {way}")
        found = tuple(parse_value(word) for word in _words(values))
        if len({repr(value) for value in found}) < len(found):
            raise SpecError(f"{option} {text[:80]!r}: a value stands there twice")
        out[name] = found
    return out


def table_ranges(table: Mapping[str, Sequence[object]], place: str) -> dict[str, tuple[object, ...]]:
    """Return field -> values of a table of a job file.

    Args:
        place: of the table, for messages.

    Raises:
        SpecError: twice the same field or value, or no field of that name.
    """
    out: dict[str, tuple[object, ...]] = {}
    for key, values in table.items():
        name = _field(key)
        if name in out or len({repr(value) for value in values}) < len(values):
            raise SpecError(f"{place} {key}: it, or one of its values, stands there twice")
        out[name] = tuple(values)
    return out


def _words(text: str) -> list[str]:
    """Cut at commas outside brackets and quotes."""
    words, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c in "[{":
            depth += 1
        elif c in "]}":
            depth -= 1
        if c == "," and not depth and not quote:
            words.append("")
        else:
            words[-1] += c
    return [word.strip() for word in words]


def _field(name: str) -> str:
    """The whole name of a field that may be ranged."""
    name = renamed(name)
    known = (
        [f"plan.{field}" for field in Plan.model_fields]
        + [f"workload.{field}" for field in _WORKLOAD]
        + [_GPUS, _CLUSTER]
    )
    wanted = name if "." in name else next((full for full in known if full.partition(".")[2] == name), name)
    if wanted not in known:
        raise UnknownNameError("field to search over", name, known, few=True, meant=explained(name.rpartition(".")[2]))
    return wanted


def make_space(
    job: Job,
    ranges: Mapping[str, tuple[object, ...]],
    fixed: Mapping[str, tuple[Any, ...]],
    any_framework: bool = False,
    also: Mapping[str, tuple[object, ...]] | None = None,
) -> Space:
    """Return a space, each value checked by itself.

    Args:
        job: everything else.
        ranges: as `read_ranges` has them, taken as given; empty = `offered_ranges` of the job, less what is fixed.
        fixed: field -> its one value.
        any_framework: whether ranges that are made here have what the job's framework does not run, too.
        also: ranges beside those given, or made.

    Raises:
        SpecError: a value that its field cannot have, a field both ranged and fixed, a fixed field with several values, or too many
            plans; or the GPU computes in no plan of them in the precision.
    """
    both = sorted({*ranges, *(also or ())} & set(fixed))
    if both:
        raise SpecError(f"{both[0]} is both ranged and fixed. Way out: leave out --fix {both[0]}, or its --range")
    several = sorted(field for field, values in fixed.items() if len(values) != 1)
    if several:
        raise SpecError(f"--fix {several[0]} takes one value, got {len(fixed[several[0]])}. Way out: --range")
    check_equal_stages(job, "a search chooses the widths of")
    pinned = Space(job=job, ranges=fixed, moves=_moves(job, fixed, fixed))
    also = also or {}
    for name, values in {**ranges, **fixed, **also}.items():
        for value in values:
            _check(name, value)
    base = pinned.job_of(Point(0, {field: values[0] for field, values in fixed.items()})) if fixed else job
    offered, left_out, untried = Offered({}, {}, {}) if ranges else offered_ranges(base, any_framework, fixed)
    chosen = (dict(ranges) or offered) | dict(also)
    if not {_PRECISION, _CLUSTER} & set(chosen):
        _check_formats(base)
    space = Space(
        job=base,
        ranges=chosen,
        moves=_moves(base, chosen, fixed),
        fixed={f: values[0] for f, values in fixed.items()},
        offered=not ranges,
        by_framework=not ranges and not any_framework,
        left_out=left_out,
        untried=untried,
    )
    if space.size > MOST_PLANS:
        raise SpecError(
            f"a space has at most {MOST_PLANS:,} plans, but the ranges combine to {space.size:,}. Way out: shorter ranges"
        )
    return space


def _check_formats(job: Job) -> None:
    """Refuse a precision in which the GPU cannot compute, before every plan is refused for it."""
    precision = precision_named(job.workload.precision)
    for dtype in (precision.compute, precision.gemm):
        job.cluster.gpu.peak(dtype)


def _moves(job: Job, ranges: Mapping[str, object], fixed: Mapping[str, object]) -> bool:
    """Whether replicas are what is left: a degree or the world is ranged, and nothing says how many there are."""
    named = "plan.data_parallel" in ranges or "plan.data_parallel" in fixed
    return not named and any(field in ranges for field in (*DEGREES, _GPUS))


_NAMED: Mapping[str, Callable[[str], object]] = {
    "plan.schedule": SCHEDULES.get,
    "plan.framework": load_framework,
    "plan.layout": STRATEGIES.get,
    "plan.gradient_exchange": EXCHANGES.get,
    "plan.recompute_policy": load_recompute_policy,
    "workload.optimizer": OPTIMIZERS.get,
    _PRECISION: precision_named,
    _CLUSTER: load_cluster,
}
"""Fields whose values are names, and what looks one up."""


def _check(field: str, value: object) -> None:
    """Refuse a value that its field cannot have, whatever the others are."""
    table, _, key = field.partition(".")
    if field == SPLIT and value in (BALANCED, *_SPLITS):
        return
    if table == "plan":
        validate_spec({key: value}, Plan, f"{field} = {setting_value(value)}")
    if field in _NAMED:
        if value is not None:
            _NAMED[field](str(value))
    elif table == "plan":
        return
    elif isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 10**8:
        raise SpecError(f"{field} takes whole numbers above zero, got {setting_value(value)[:40]!r}")


def on_cluster(job: Job, name: str, gpus: int) -> Cluster:
    """Return a cluster by name with so many GPUs; what the job says of its own cluster in place of the file holds there, too."""
    own = job.cluster
    spread = own.spec.gpu_spread
    told = None if spread == load_cluster(own.given_as).spec.gpu_spread else spread
    return _on_cluster(name, gpus, own.changes, own.own_parts, power_said(job), told)


def power_said(job: Job) -> Power | None:
    """Return what a job says of its electricity, and not its cluster's file; None = nothing."""
    return None if job.power == job.cluster.electricity() else job.power


@functools.lru_cache(maxsize=256)
def _on_cluster(
    name: str, gpus: int, changes: ClusterChanges, parts: tuple[Part, ...], said: Power | None, spread: float | None
) -> Cluster:
    made = load_cluster(name, gpus, changes if changes.given else None)
    made = made if spread is None else made.with_spread(spread)
    return replace(made, parts=made.parts + parts).under(made.electricity(said))
