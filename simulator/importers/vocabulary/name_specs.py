"""Entries of hardware_specs/names.toml that say when they hold, each with where it was read."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from simulator.specs import Listed, Name, Names, Spec
from simulator.units import BytesPerSecond, Watts

__all__ = [
    "FrameworkOfNote",
    "FrameworkOfRelease",
    "FrameworkOfTime",
    "HabitOfModel",
    "SourceFact",
    "UsualNetwork",
    "month_of",
    "month_submitted",
    "release_of",
    "time_told",
    "years_of",
]

_EARLY = ("kepler", "pascal", "volta", "turing", "ampere")
"""Architectures that codes of before 2023 ran on."""


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class SourceFact(Spec):
    """What the tables of one source leave unsaid, or say by words of their own.

    Args:
        of: a part of the source's text, case ignored; for `repeats`, of the name of the library whose kernels were timed.
        gpu: our GPU that it is about; "" = any.
        card: our GPU that is meant by that name; gpu_power: what each may draw, where that is less than it can [W].
        attention, precision: a word of the source -> our kernel, our precision.
        frameworks: our usual profile -> the source's own, in versions of its table from `since` on (compared as texts).
        vocabulary: rows of the embedding of its models.
        recompute: what it recomputes.
        offloads: beside that, it moves activations to the host where memory is short, which is not simulated: such a run's verdict
            on memory is not judged.
        network: technology between its nodes.
        switches: our cluster whose switches lie between its nodes.
        calibration: files measured on its own machine.
        memory: what its peaks of memory count.
        memory_unit: what it means by its unit of memory.
        repeats: how often its benchmark runs a kernel in a row on a GPU that was idle before.
        source: where that was read.
    """

    of: Name
    gpu: str = ""
    card: str = ""
    gpu_power: Watts | None = None
    attention: dict[str, Name] = Field(default_factory=dict)
    precision: dict[str, Name] = Field(default_factory=dict)
    frameworks: dict[str, Name] = Field(default_factory=dict)
    since: str = ""
    vocabulary: int | None = Field(default=None, ge=1)
    recompute: Name | None = None
    offloads: bool = False
    network: str = ""
    switches: str = ""
    calibration: Names = ()
    memory: Literal["allocated", "reserved", "device"] | None = None
    memory_unit: Name | None = None
    repeats: float | None = Field(default=None, ge=1.0)
    source: Name

    @model_validator(mode="after")
    def _check(self) -> SourceFact:
        if not self.model_fields_set - {"of", "gpu", "since", "offloads", "source"}:
            raise ValueError(
                f"the entry of {self.of!r} says nothing; expected attention, precision, network or another fact"
            )
        return self


class UsualNetwork(Spec):
    """The network of a row that names none: that of the middle one of the machines with its GPU, not of the vendor's own.

    Args:
        rate: of a GPU, one direction [B/s].
        source: of which machines.
    """

    rate: BytesPerSecond
    source: Name


class FrameworkOfTime(Spec):
    """The profile that the name of a code means in runs of other years, or on newer GPUs than its usual one is for.

    Args:
        framework: the usual profile.
        since, until: a year or a month, "the year 2023", "2025-04", inclusive; with both, only a run that says when it was is meant.
        newer: architectures of GPUs that came later; () = all since 2023.
        profile: what is meant then.
        source: where that was read.
    """

    framework: Name
    since: str = ""
    until: str = ""
    newer: Names = ()
    profile: Name
    source: Name

    @model_validator(mode="after")
    def _check(self) -> FrameworkOfTime:
        if not (self.since or self.until) or (self.newer and self.until):
            raise ValueError("expected since or until, or both (with newer, since)")
        if self.newer and not month_of(self.since):
            raise ValueError(f'since = "{self.since[:40]}": expected a month such as "2025-04" where newer is given')
        for time in filter(None, (self.since, self.until)):
            if not time_told(time):
                raise ValueError(
                    f'"{time[:40]}": expected a year such as "the year 2023", or a month such as "2025-04"'
                )
        return self

    def holds(self, told: str, year: str, month: str, architecture: str) -> bool:
        """Return whether a run is meant.

        Args:
            told: the month that the run says itself, as `time_told`; "" = none.
            year: the latest year that it may have been in, "" = not known; month: so, also by where it was published.
            architecture: of its GPUs.
        """
        if self.newer:
            return month >= month_of(self.since) or architecture in self.newer
        if self.until:
            return bool(told) and time_told(self.since)[:4] <= told[:4] and told <= time_told(self.until)
        return architecture not in _EARLY or year >= years_of(self.since)[0]


class FrameworkOfNote(Spec):
    """The profile of a framework in runs whose notes name something that its usual one lacks.

    Args:
        framework: the usual profile.
        words: of notes, lower case; one is enough.
        profile: what is meant then.
        source: where that was read.
    """

    framework: Name
    words: Annotated[tuple[Name, ...], Listed, Field(min_length=1)]
    profile: Name
    source: Name


class FrameworkOfRelease(Spec):
    """The profile of a framework from a release on, or before one.

    Args:
        framework: the usual profile.
        architecture: of the GPUs; "" = any.
        since, until: a release, year.month; `until` is exclusive.
        profile: what holds then.
        source: where that was read.
    """

    framework: Name
    architecture: str = ""
    since: str = ""
    until: str = ""
    profile: Name
    source: Name

    @model_validator(mode="after")
    def _check(self) -> FrameworkOfRelease:
        told = [text for text in (self.since, self.until) if text]
        if not told or not all(map(release_of, told)):
            raise ValueError('expected since or until as a release such as "release 24.11"')
        return self

    def holds(self, release: tuple[int, ...], architecture: str) -> bool:
        """Return whether a run of this release on GPUs of this architecture is meant."""
        late = not self.since or release >= release_of(self.since)
        early = not self.until or release < release_of(self.until)
        return self.architecture in ("", architecture) and late and early


class HabitOfModel(Spec):
    """Words of codes that build a model as its publisher wrote it, what it is like then (dropout, a kernel, an activation function), and
    where that was read.

    `until` is the release, year.month, with which it was over.
    """

    builders: Name
    source: Name
    attention: Name | None = None
    activation: Name | None = None
    until: str = ""


def years_of(text: str) -> list[str]:
    """Return the years that a text holds, of this century since 2010."""
    return re.findall(r"\b20[12]\d\b", text)


def month_of(text: str) -> str:
    """Return the latest month that a text holds, as 202504, with or without a day; "" for none.

    >>> month_of("2024-07"), month_of("nightly-20240814 of 2024"), month_of("2024-2025")
    ('202407', '202408', '')
    """
    found = re.findall(r"(?<!\d)(20[12]\d)[-_./ ]?(0[1-9]|1[0-2])(?:[0-2]\d|3[01])?(?!\d)", text)
    return max((year + month for year, month in found), default="")


def time_told(text: str) -> str:
    """Return the first month that a text tells, as 202504, or the last one of the first year; "" for none.

    >>> time_told("2bc6cd30, January 2024"), time_told("Megatron-LM (2023), 2024-04"), time_told("2024.01"), time_told("v4.0")
    ('202401', '202312', '202401', '')
    """
    found = re.search(
        rf"(?:\b({'|'.join(_MONTHS)})[a-z]*\.? )?(?<!\d)(20[12]\d)(?:[-_./]?(0[1-9]|1[0-2]))?(?![\d])",
        text,
        re.IGNORECASE,
    )
    if found is None:
        return ""
    name, year, month = found.groups()
    return f"{year}{_MONTHS.index(name.lower()) + 1:02d}" if name else year + (month or "12")


def month_submitted(text: str) -> str:
    """Return the month in which a paper that a text names went to arXiv, as 202504; "" for none.

    >>> month_submitted("Skywork, arXiv 2310.19341, Table 5"), month_submitted("results_202506.md")
    ('202310', '')
    """
    found = re.search(r"arxiv[ :./a-z]*(\d\d)(0[1-9]|1[0-2])\.\d{4,5}", text, re.IGNORECASE)
    return f"20{found.group(1)}{found.group(2)}" if found else ""


def release_of(text: str) -> tuple[int, ...]:
    """Return year, month and patch of "26.04.01" or "release 26.04", or the start of a year that stands alone; () for others.

    >>> release_of("26.04.01"), release_of("24.07a"), release_of("launcher-2024"), release_of("v4.0")
    ((26, 4, 1), (24, 7), (24, 0), ())
    """
    month, year = re.match(r"(?:release )?(\d\d)\.(\d+)(?:\.(\d+))?", text), re.search(r"\b20(\d\d)\b", text)
    if month:
        return tuple(int(part) for part in month.groups() if part)
    return (int(year[1]), 0) if year else ()
