"""A study: a job and the values that some of its settings take, every combination a point.

name = "zero_by_batch"
job = "gpt3_175b"                     # or model = "llama3_8b" and cluster = "h100_x8"
set = ["plan.recompute=full"]         # for all points

[vary]                                # any field of workload, model, plan or cluster
"plan.zero_stage" = [0, 1, 3]
"workload.global_batch_size" = [512, 1024]
cluster = ["dgx_a100", "dgx_h100"]
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from simulator.aliases import renamed
from simulator.errors import SpecError
from simulator.job import Job, check_keys
from simulator.search.space import setting_value, with_replicas
from simulator.specs import Spec, read_toml, validate_spec
from simulator.specs.folders import KINDS, spec_files
from simulator.studies.variants import SHORT_KEYS, VariantLoader

__all__ = ["MOST_POINTS", "Study", "load_study"]

MOST_POINTS = 10_000_000
"""Points of the largest study."""


class StudyFile(Spec):
    """A study's file; `vary` has, by setting, its values."""

    name: str = "study"
    notes: str | None = None
    job: str | None = None
    model: str | None = None
    cluster: str | None = None
    set: list[str] = Field(default_factory=list)
    vary: dict[str, Annotated[list[Any], Field(min_length=1, max_length=100_000)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study as it is run; points are numbered from 0, the last setting's values first.

    Args:
        place: (job, model, cluster), as `load_any_job` takes them.
        fixed: settings of all points.
        vary: setting -> its values.
    """

    name: str
    place: tuple[str | None, str | None, str | None]
    fixed: tuple[str, ...]
    vary: tuple[tuple[str, tuple[Any, ...]], ...]

    @property
    def size(self) -> int:
        """How many points."""
        return math.prod(len(values) for _, values in self.vary)

    def values(self, number: int) -> dict[str, Any]:
        """Return the settings of a point that vary."""
        out: dict[str, Any] = {}
        for field, values in self.vary[::-1]:
            number, place = divmod(number, len(values))
            out[field] = values[place]
        return {field: out[field] for field, _ in self.vary}

    def settings(self, number: int) -> list[str]:
        """Return all settings of a point."""
        return [*self.fixed, *(f"{field}={setting_value(value)}" for field, value in self.values(number).items())]

    def key(self, number: int, origin: str) -> str:
        """Return what a point's result is kept under: a hash of its settings and of all that they rest on."""
        return hashlib.sha256(json.dumps([origin, self.settings(number)]).encode()).hexdigest()[:32]

    def numbers(self, origin: str) -> Callable[[str], int | None]:
        """Return what tells which point a key is of, None where it is of none; it holds 16 bytes per point."""
        heads = np.fromiter(
            (int(self.key(number, origin)[:16], 16) for number in range(self.size)), np.uint64, self.size
        )
        order = np.argsort(heads, kind="stable")
        heads = heads[order]

        def number(key: str) -> int | None:
            try:
                head = np.uint64(int(key[:16], 16))
            except ValueError:
                return None
            first, last = np.searchsorted(heads, head, "left"), np.searchsorted(heads, head, "right")
            return next((n for n in order[first:last].tolist() if self.key(n, origin) == key), None)

        return number

    def origin(self) -> str:
        """Return a hash of what every point rests on: the package's version, all data files, and the job."""
        from simulator import __version__

        found = hashlib.sha256(json.dumps([__version__, self.place]).encode())
        files = [path for kind in KINDS for path in spec_files(kind).values()]
        files += [Path(name) for name in self.place if name and Path(name).is_file()]
        for path in sorted(set(files)):
            found.update(path.name.encode() + path.read_bytes())
        return found.hexdigest()

    def job(self, number: int) -> Job:
        """Return a point as a job that does the study's work on as many GPUs, unless its settings say otherwise.

        Raises:
            SimulatorError: it cannot be.
        """
        loader = _loader(self.place)
        return loader.load(self.settings(number), loader.like([self.fixed]))

    def settings_to_run(self, number: int) -> list[str]:
        """Return a point as `--set` arguments of its job that any verb takes: with its replicas, where it has others than the job says."""
        told = _loader(self.place).base.plan.data_parallel is not None
        return with_replicas(replace(self.job(number), replicas_told=told), self.settings(number))


@functools.lru_cache(maxsize=4)
def _loader(place: tuple[str | None, str | None, str | None]) -> VariantLoader:
    return VariantLoader(*place)


def load_study(path: str) -> Study:
    """Return the study of a file, its job and settings checked.

    Raises:
        SpecError: the file is wrong, or it has no point, or too many.
        UnknownNameError: a setting that no job has.
    """
    spec = validate_spec(read_toml(Path(path)), StudyFile, path)
    if spec.job is None and not (spec.model and spec.cluster):
        raise SpecError(f'{path}: what is studied? Give job = "NAME or FILE", or model and cluster')
    if spec.job is not None and (spec.model or spec.cluster):
        raise SpecError(
            f"{path}: job = {spec.job!r} names its own model and cluster. Way out: vary them, or leave job out"
        )
    if not spec.vary:
        raise SpecError(f'{path}: [vary] names no setting. Way out: "plan.zero_stage" = [0, 1, 3]')
    vary = tuple((SHORT_KEYS.get(key) or renamed(key), tuple(values)) for key, values in spec.vary.items())
    _check(path, vary, [renamed(setting) for setting in spec.set])
    study = Study(
        name=spec.name,
        place=(spec.job, spec.model, spec.cluster),
        fixed=tuple(renamed(setting) for setting in spec.set),
        vary=vary,
    )
    if study.size > MOST_POINTS:
        raise SpecError(f"{path}: a study has at most {MOST_POINTS:,} points, but [vary] combines to {study.size:,}")
    _loader(study.place)
    return study


def _check(path: str, vary: Sequence[tuple[str, tuple[object, ...]]], fixed: Sequence[str]) -> None:
    check_keys([f"{field}=" for field, _ in vary] + list(fixed))
    names = [field for field, _ in vary]
    twice = [field for field in names if names.count(field) > 1 or any(one.startswith(f"{field}=") for one in fixed)]
    if twice:
        raise SpecError(f"{path}: {twice[0]} is given twice")
    for field, values in vary:
        if len({repr(value) for value in values}) < len(values):
            raise SpecError(f"{path}, [vary] {field}: a value stands there twice")
