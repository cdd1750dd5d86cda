"""What an entry of hardware_specs/names.toml says of a source or a framework, each with where it was read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simulator.specs import Name, Names, Spec

__all__ = [
    "DropoutOfModel",
    "FabricName",
    "FrameworkEarlier",
    "FrameworkLater",
    "FrameworkSince",
    "FrameworkUntil",
    "SoftwareRepeats",
    "SourceFramework",
    "SourceKernel",
    "SourceMachine",
    "SourceMemory",
    "SourcePrecision",
    "SourceRecompute",
    "SourceVocabulary",
]


class FabricName(Spec):
    """The network technology of a source, and where that was read."""

    technology: Name
    source: Name


class DropoutOfModel(Spec):
    """Words of codes that build a model from its published configuration, which trains with dropout, and where that was read."""

    builders: Name
    source: Name


class SourceMachine(Spec):
    """Calibrations measured on the machine of a source, for its runs with this GPU, and where that was read."""

    gpu: Name
    calibration: Names
    source: Name


class SourceMemory(Spec):
    """What the peak memory of a source counts, in which unit, and where that was read."""

    kind: Literal["allocated", "reserved", "device"] | None = None
    unit: Name | None = None
    source: Name


class SourceKernel(Spec):
    """What a source means by a word for an attention kernel, and where that was read."""

    word: Name
    kernel: Name
    source: Name


class SourcePrecision(Spec):
    """What a source means by its word for a precision, and where that was read."""

    word: Name
    precision: Name
    source: Name


class FrameworkSince(Spec):
    """A framework's profile on an architecture from a release on, and where that was read; releases are year.month."""

    since: Name
    architecture: Name
    framework: Name
    source: Name


class SourceFramework(Spec):
    """Profiles that a source's runs have from one of its versions on, in place of the usual ones, and where that was read.

    Args:
        since: the first version, as the table writes them; versions are compared as texts.
        frameworks: usual profile -> the source's own.
    """

    since: Name = ""
    frameworks: dict[str, Name]
    source: Name


class FrameworkUntil(Spec):
    """A framework's profile before a release, and where that was read; releases are year.month."""

    until: Name
    framework: Name
    source: Name


class FrameworkLater(Spec):
    """The profile that a code's name means since a year or a month, and on GPUs that are newer; where that was read.

    Args:
        since: a year, such as "the year 2023", or a month, "2025-04".
        newer: architectures of GPUs that came later; () = all since 2023.
    """

    since: Name
    newer: Names = ()
    framework: Name
    source: Name


class FrameworkEarlier(Spec):
    """The profile that a code's name meant until a year, and where that was read."""

    until: Name
    framework: Name
    source: Name


class SourceVocabulary(Spec):
    """Rows of the embedding of a source's models where its table does not say, and where that was read."""

    vocabulary: int = Field(ge=1)
    source: Name


class SourceRecompute(Spec):
    """What a source recomputes where its table does not say, and where that was read.

    Args:
        offloads: whether it moves activations to the host where memory is short, which is not simulated: such a run's
            verdict on memory is not judged.
    """

    recompute: Name
    offloads: bool = False
    source: Name


class SoftwareRepeats(Spec):
    """How often the benchmark of a library runs a kernel in a row on a GPU that was idle before (on one GPU alone where it is named),
    and where that was read."""

    repeats: float = Field(ge=1.0)
    gpu: str = ""
    source: Name
