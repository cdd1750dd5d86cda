"""What tables of measured runs call things -> our names (hardware_specs/names.toml; design 5b P).

A text is looked up as it is (without case, spaces and punctuation), then by its words, then left to the row's numbers.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from pydantic import Field

from simulator.hardware.gpu import Gpu
from simulator.specs import Name, Spec, data_roots, load_all, load_spec
from simulator.studies.validation.name_specs import (
    DropoutOfModel,
    FabricName,
    FrameworkEarlier,
    FrameworkLater,
    FrameworkSince,
    FrameworkUntil,
    SoftwareRepeats,
    SourceFramework,
    SourceKernel,
    SourceMachine,
    SourceMemory,
    SourcePrecision,
    SourceRecompute,
    SourceVocabulary,
)
from simulator.units import parse

__all__ = ["FabricName", "NameTable", "find_gpu", "load_names", "release_of", "words_of"]

T = TypeVar("T")

_VENDORS = ("nvidia", "amd", "intel", "google", "huawei", "geforce", "tesla", "instinct", "quadro", "cloud")
"""Words of a GPU's name that say nothing of which one it is."""
_EARLY = ("kepler", "pascal", "volta", "turing", "ampere")
"""Architectures that codes of before 2023 ran on."""
_NEAR = 0.01
"""Memories that are nearer to each other than this are the same."""
MEMORY_TOLERANCE = 0.06
"""How far the memory that a table gives may lie from the data sheet's, as decimal or as binary gigabytes [1]."""


class Recipe(Spec):
    """What a framework's published recipes set for a model on some GPUs, which no table of results prints.

    Args:
        framework, model: ours ("" = any), and what the model's name begins with in the table.
        gpus: words, each the beginning of a GPU's name.
        table: a part of the name of the table of results; "" = any.
        since, until: releases, year.month.patch, both inclusive; "" = any.
        profile: the framework's profile that holds; "" = its usual one.
        cuda_graphs: as in `Plan`, scopes divided by commas; "" = the profile's habit.
        recompute_modules: as in `Plan`, divided by commas; "" = none.
        source: where that was read.
    """

    framework: str = ""
    model: Name
    gpus: Name
    table: str = ""
    since: str = ""
    until: str = ""
    profile: str = ""
    cuda_graphs: str = ""
    recompute_modules: str = ""
    source: Name

    def holds(self, framework: str, row: tuple[str, str, str, str]) -> bool:
        """Return whether a row is meant: our name of its framework, and what it says of source, model, GPU and release."""
        source, model, gpu, version = row
        release, known = release_of(version), {words_of(word) for word in self.gpus.split(",")}
        begins = _plain(model).startswith(_plain(self.model)) and words_of(gpu)[:1] in known
        late = not self.since or (bool(release) and release >= release_of(self.since))
        meant = self.framework in ("", framework) and self.table.lower() in source.lower()
        return meant and begins and late and (not self.until or release <= release_of(self.until))


class NameTable(Spec):
    """The content of hardware_specs/names.toml."""

    gpus: dict[str, Name]
    links: dict[str, Name]
    frameworks: dict[str, Name]
    framework_words: dict[str, Name]
    schedules: dict[str, Name]
    framework_compiled: dict[str, Name] = Field(default_factory=dict)
    framework_later: dict[str, FrameworkLater] = Field(default_factory=dict)
    framework_earlier: dict[str, FrameworkEarlier] = Field(default_factory=dict)
    words_since: dict[str, Name] = Field(default_factory=dict)
    attention: dict[str, Name]
    attention_of_source: dict[str, SourceKernel] = Field(default_factory=dict)
    framework_since: dict[str, FrameworkSince] = Field(default_factory=dict)
    recipes: dict[str, Recipe] = Field(default_factory=dict)
    framework_until: dict[str, FrameworkUntil] = Field(default_factory=dict)
    framework_of_kernel: dict[str, Name] = Field(default_factory=dict)
    framework_of_precision: dict[str, Name] = Field(default_factory=dict)
    framework_of_source: dict[str, SourceFramework] = Field(default_factory=dict)
    vocabulary_of_source: dict[str, SourceVocabulary] = Field(default_factory=dict)
    sequence_parallel_habit: dict[str, Name] = Field(default_factory=dict)
    dropout_of_model: dict[str, DropoutOfModel] = Field(default_factory=dict)
    attention_notes: dict[str, Name] = Field(default_factory=dict)
    recompute: dict[str, Name]
    recompute_of_source: dict[str, SourceRecompute] = Field(default_factory=dict)
    precisions: dict[str, Name]
    precision_of_source: dict[str, SourcePrecision] = Field(default_factory=dict)
    fabrics: dict[str, FabricName]
    machine_of_source: dict[str, SourceMachine] = Field(default_factory=dict)
    memory_of_source: dict[str, SourceMemory] = Field(default_factory=dict)
    memory_units: dict[str, Name]
    repeats_of_software: dict[str, SoftwareRepeats] = Field(default_factory=dict)

    def find(self, table: str, text: str) -> str | None:
        """Return our name for a text in one of the tables, by its letters and digits alone; None when it is not there.

        >>> load_names().find("recompute", "Every layer")
        'full'
        """
        return _plain_table(self, table).get(_plain(text))

    def framework_by_words(self, text: str) -> str | None:
        """Return the framework of the first entry of the table that a text has; long words also inside another word.

        >>> load_names().framework_by_words("HF Accelerate + DeepSpeed ZeRO-3")
        'hugging_face_deepspeed'
        """
        words, plain = words_of(text), text.lower()

        def said(word: str) -> bool:
            return word in words or ((len(word) > 5 or not word.isalnum()) and word in plain)

        return next((name for entry, name in self.framework_words.items() if all(map(said, entry.split(" + ")))), None)

    def framework_as_built(self, framework: str, text: str) -> str:
        """Return the profile of a framework whose text says that its layers are compiled or made of fused kernels.

        >>> load_names().framework_as_built("pytorch_fsdp", "FSDP + torch.compile")
        'pytorch_fsdp_fused'
        """
        plain = text.lower()
        built = re.search(r"compile|fused kernels", plain) and not re.search(
            r"(without|no)[ -]torch.?compile|thunder", plain
        )
        return self.framework_compiled.get(framework, framework) if built else framework

    def framework_today(
        self, framework: str, words: str, architecture: str, where: str = ""
    ) -> FrameworkLater | FrameworkEarlier | None:
        """Return what a code's name means for a run of these words (they may hold a year) on a GPU of this architecture.

        Args:
            where: it was published, which may hold a month.
        """
        later, earlier = self.framework_later.get(framework), self.framework_earlier.get(framework)
        year = self.year_of(words)
        if later is not None and later.newer:
            late = _month(f"{words} {where}") >= _month(later.since)
            return later if late or architecture in later.newer else None
        if later is not None and (architecture not in _EARLY or year >= _years(later.since)[0]):
            return later
        return earlier if earlier is not None and year and year <= _years(earlier.until)[0] else None

    def year_of(self, words: str) -> str:
        """Return the latest year that words tell, or that what they name is of; "" if they tell none.

        >>> load_names().year_of("Megatron-LM (2021)"), load_names().year_of("llama2-7b flash attention 2")
        ('2021', '2023')
        """
        told = (year for word, since in self.words_since.items() if word in words.lower() for year in _years(since))
        return max((*_years(words), *told), default="")

    def fabric_of(self, source: str) -> FabricName | None:
        """Return the network technology known for a source, by a part of its text."""
        return next(_said_of(self.fabrics, source), None)

    def framework_at(self, framework: str, version: str, architecture: str) -> str | None:
        """Return the profile of a framework at a version such as "26.04.01" on an architecture, if it has one of its own.

        >>> names = load_names()
        >>> names.framework_at("nemo", "24.07", "hopper"), names.framework_at("nemo", "25.02", "hopper")
        ('nemo_2024', None)
        """
        release = release_of(version)
        since, table = self.framework_since.get(framework), self.framework_until
        until = table.get(f"{framework} {architecture}") or table.get(f"{framework} any")
        if not release:
            return None
        if since is not None and since.architecture == architecture and release >= release_of(since.since):
            return since.framework
        if until is not None and release < release_of(until.until):
            return until.framework
        return None

    def framework_of(self, source: str, framework: str, version: str) -> tuple[str, str] | None:
        """Return (profile, where that was read) that a source has of its own at a version, by a part of its text."""
        known = next(_said_of(self.framework_of_source, source), None)
        if known is None or framework not in known.frameworks or version < known.since:
            return None
        return known.frameworks[framework], known.source

    def vocabulary_of(self, source: str) -> SourceVocabulary | None:
        """Return the vocabulary of a source's models where a row does not say, by a part of its text."""
        return next(_said_of(self.vocabulary_of_source, source), None)

    def recipe_of(self, framework: str, row: tuple[str, str, str, str]) -> Recipe | None:
        """Return the recipe that a row (source, model, GPU, release) was made with, if it is known."""
        return next((recipe for recipe in self.recipes.values() if recipe.holds(framework, row)), None)

    def recompute_of(self, source: str) -> SourceRecompute | None:
        """Return what a source recomputes where a row does not say, by a part of its text."""
        return next(_said_of(self.recompute_of_source, source), None)

    def dropout_of(self, model: str, framework: str) -> DropoutOfModel | None:
        """Return why a model of this name trains with dropout under a code of this name; None where nothing says so."""
        known = next((d for begin, d in self.dropout_of_model.items() if _plain(model).startswith(_plain(begin))), None)
        if known is None or not set(words_of(known.builders)) & set(words_of(framework)):
            return None
        return known

    def machine_of(self, source: str, gpu: str) -> SourceMachine | None:
        """Return the calibrations known for a source's machine with this GPU, by a part of its text."""
        return next((m for m in _said_of(self.machine_of_source, source) if m.gpu == gpu), None)

    def memory_of(self, source: str) -> SourceMemory | None:
        """Return what the peak memory of a source is known to count, by a part of its text."""
        return next(_said_of(self.memory_of_source, source), None)

    def repeats_of(self, software: str, gpu: str) -> float | None:
        """Return how often the benchmark of a library runs a kernel in a row, by a part of the software's name."""
        known = _said_of(self.repeats_of_software, software)
        return next((x.repeats for x in known if x.gpu in ("", gpu)), None)

    def kernel_of(self, source: str, word: str) -> SourceKernel | None:
        """Return what a source means by its word for an attention kernel, if it means something of its own."""
        found = _said_of(self.attention_of_source, source)
        return next((k for k in found if _plain(k.word) == _plain(word)), None)

    def precision_of(self, source: str, word: str) -> SourcePrecision | None:
        """Return what a source means by its word for a precision, if it means something of its own."""
        found = _said_of(self.precision_of_source, source)
        return next((k for k in found if _plain(k.word) == _plain(word)), None)

    def __hash__(self) -> int:
        return id(self)


def _years(text: str) -> list[str]:
    return re.findall(r"\b20[12]\d\b", text)


def _said_of(table: dict[str, T], source: str) -> Iterator[T]:
    """Entries of a table whose key is a part of a source's text, in the order of the table."""
    lowered = source.lower()
    return (entry for text, entry in table.items() if text.lower() in lowered)


@functools.lru_cache(maxsize=2)
def load_names() -> NameTable:
    """Return the table of names shipped with the simulator, or the one in the working directory."""
    for root in data_roots():
        path = root / "hardware_specs" / "names.toml"
        if path.is_file():
            return load_spec(path, NameTable)
    return load_spec("hardware_specs/names.toml", NameTable)


def _month(text: str) -> str:
    """The latest month that a text holds, as 202504; "" for none."""
    found = re.findall(r"(?<!\d)(20[12]\d)[-_./ ]?(0[1-9]|1[0-2])(?!\d)", text)
    return max((year + month for year, month in found), default="")


def release_of(text: str) -> tuple[int, ...]:
    """Return year, month and patch of "26.04.01" or "release 26.04", or the start of a year that stands alone; () for others.

    >>> release_of("26.04.01"), release_of("24.07a"), release_of("launcher-2024"), release_of("v4.0")
    ((26, 4, 1), (24, 7), (24, 0), ())
    """
    month, year = re.match(r"(?:release )?(\d\d)\.(\d+)(?:\.(\d+))?", text), re.search(r"\b20(\d\d)\b", text)
    if month:
        return tuple(int(part) for part in month.groups() if part)
    return (int(year[1]), 0) if year else ()


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text: runs of letters and digits, lower case.

    >>> words_of("NVIDIA A100-SXM4-80GB")
    ('nvidia', 'a100', 'sxm4', '80gb')
    """
    return tuple(re.findall(r"[a-z0-9]+", text.lower()))


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A GPU of ours for a text; `exact` = the text itself is in the table."""

    name: str
    exact: bool


def find_gpu(table: NameTable, text: str, memory: float | None) -> FoundGpu | None:
    """Return the GPU that a text means: by the table, else by generation, memory and form among its words.

    Args:
        memory: the gigabytes that the row gives, decimal or binary; None if it gives none.
    """
    name = table.find("gpus", text)
    if name is not None:
        return FoundGpu(name, True)
    words = words_of(text)
    bare = "".join(word for word in words if word not in _VENDORS)
    for stem, gpu in load_all("gpus", Gpu).items():
        fits = memory is None or _same_memory(gpu.memory, memory)
        if bare and fits and bare in {_plain(known) for known in (stem, *gpu.aliases)}:
            return FoundGpu(stem, False)
    words += tuple(a + b for a, b in itertools.pairwise(words))
    said = next((float(word.rstrip("gib")) for word in words if re.fullmatch(r"\d+g(i?b)?", word)), memory)
    form = next((f for f in ("pcie", "sxm") if any(re.search(f + r"\d?$", word) for word in words)), "")
    candidates = []
    for stem, gpu in load_all("gpus", Gpu).items():
        generation = _generation(stem)
        if not any(re.fullmatch(rf"(rtx)?{generation}(sxm\d?|pcie)?", word) for word in words):
            continue
        plugs = gpu.form.lower().startswith("pcie")
        if (said is not None and not _same_memory(gpu.memory, said)) or (form and plugs != (form == "pcie")):
            continue
        special = not {"500w", "sxm3"} & set(stem.split("_")) <= set(words)
        far = round(_distance(gpu.memory, said) / _NEAR) if said is not None else 0
        candidates.append((far, special, plugs, -gpu.memory, stem))
    return FoundGpu(min(candidates)[-1], False) if candidates else None


def _generation(stem: str) -> str:
    """The part of a file's name that says which generation it is, as one word.

    >>> _generation("h100_80gb_sxm"), _generation("rtx_2080_ti"), _generation("tpu_v4")
    ('h100', '2080ti', 'tpuv4')
    """
    parts = re.sub(r"^rtx_", "", stem).split("_")
    joined = len(parts) > 1 and (parts[0] in ("tpu", "ascend") or parts[1] == "ti")
    return parts[0] + parts[1] if joined else parts[0]


def _same_memory(memory: float, gigabytes: float) -> bool:
    return _distance(memory, gigabytes) <= MEMORY_TOLERANCE


def _distance(memory: float, gigabytes: float) -> float:
    """How far a GPU's memory lies from what was said, decimal or binary, whichever is nearer [1]."""
    return min(abs(memory / parse(f"{gigabytes} {unit}", "B") - 1) for unit in ("GB", "GiB"))


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


@functools.lru_cache(maxsize=32)
def _plain_table(names: NameTable, table: str) -> dict[str, str]:
    entries: dict[str, str] = getattr(names, table)
    return {_plain(text): name for text, name in entries.items()}
