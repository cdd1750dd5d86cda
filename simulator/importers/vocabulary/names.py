"""What tables of measured runs call things -> our names (hardware_specs/names.toml; design 5b P).

A text is looked up as it is (without case, spaces and punctuation), then by its words, then left to the row's numbers.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from simulator.hardware.gpu import Gpu
from simulator.importers.vocabulary.name_specs import (
    FrameworkOfNote,
    FrameworkOfRelease,
    FrameworkOfTime,
    HabitOfModel,
    SourceFact,
    UsualNetwork,
    month_of,
    month_submitted,
    release_of,
    time_told,
    years_of,
)
from simulator.specs import Listed, Name, Spec, data_roots, load_all, load_spec
from simulator.units import parse

__all__ = ["NameTable", "find_gpu", "load_names", "words_of"]

_VENDORS = ("nvidia", "amd", "intel", "google", "huawei", "geforce", "tesla", "instinct", "quadro", "cloud")
"""Words of a GPU's name that say nothing of which one it is."""
_MARKS = {"500w", "sxm3", "ada", "quadro"}
"""Words that tell two cards of one chip and memory apart: a text has all of a card\'s, and no other."""
_OF_TIME = (
    r"v?\d+|(?=[a-f]*\d)[0-9a-f]{7,}|jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?"
    r"|nov(ember)?|dec(ember)?"
)
"""A word that tells a release, a commit or a month."""
_NEAR = 0.01
"""Memories that are nearer to each other than this are the same."""
MEMORY_TOLERANCE = 0.06
"""How far the memory that a table gives may lie from the data sheet's, as decimal or as binary gigabytes [1]."""

_ECC_TOLERANCE = 0.10
"""The same for a card of which there is one by that name: error correction takes a sixteenth of GDDR6 (NVIDIA, nvidia-smi's ECC mode), and
tables print what is left, rounded down: 22 GB of an A10's 24."""


class Recipe(Spec):
    """What a framework's published recipes set for a model on some GPUs, which no table of results prints.

    Args:
        framework, model: ours ("" = any), and what the model's name begins with in the table.
        gpus: words, each the beginning of a GPU's name.
        table: a part of the name of the table of results; "" = any.
        since, until: releases, year.month.patch, both inclusive; "" = any.
        precision: ours; "" = any.
        profile: the framework's profile that holds; "" = its usual one.
        cuda_graphs: as in `Plan`, scopes divided by commas; "" = the profile's habit.
        recompute_modules: as in `Plan`, divided by commas; "" = none.
        schedule: as in `Plan`; "" = what the row says.
        attention: as in `Plan`; "" = the profile's habit.
        source: where that was read.
    """

    framework: str = ""
    model: Name
    gpus: Name
    table: str = ""
    since: str = ""
    until: str = ""
    precision: str = ""
    profile: str = ""
    cuda_graphs: str = ""
    recompute_modules: str = ""
    schedule: str = ""
    attention: str = ""
    source: Name

    def holds(self, framework: str, row: tuple[str, str, str, str, str]) -> bool:
        """Return whether a row is meant: our name of its framework; what it says of source, model, GPU and release; its precision."""
        source, model, gpu, version, precision = row
        release, known = release_of(version), {words_of(word) for word in self.gpus.split(",")}
        begins = _plain(model).startswith(_plain(self.model)) and words_of(gpu)[:1] in known
        late = not self.since or (bool(release) and release >= release_of(self.since))
        meant = (
            self.framework in ("", framework)
            and self.precision in ("", precision)
            and self.table.lower() in source.lower()
        )
        return meant and begins and late and (not self.until or release <= release_of(self.until))


class UsualZeroStage(Spec):
    """What runs of a code mean whose row names no ZeRO stage.

    Args:
        stage: 0 to 3.
        source: where that was read.
    """

    stage: Annotated[int, Field(ge=0, le=3)]
    source: Name


class NameTable(Spec):
    """The content of hardware_specs/names.toml."""

    gpus: dict[str, Name]
    links: dict[str, Name]
    frameworks: dict[str, Name]
    framework_words: dict[str, Name]
    framework_stand_ins: Annotated[tuple[Name, ...], Listed] = ()
    framework_parts: Annotated[tuple[Name, ...], Listed] = ()
    framework_variants: dict[str, Name] = Field(default_factory=dict)
    framework_of_time: Annotated[tuple[FrameworkOfTime, ...], Listed] = ()
    framework_of_note: Annotated[tuple[FrameworkOfNote, ...], Listed] = ()
    framework_of_release: Annotated[tuple[FrameworkOfRelease, ...], Listed] = ()
    words_since: dict[str, Name] = Field(default_factory=dict)
    schedules: dict[str, Name]
    attention: dict[str, Name]
    attention_notes: dict[str, Name] = Field(default_factory=dict)
    recompute: dict[str, Name]
    precisions: dict[str, Name]
    memory_units: dict[str, Name]
    sequence_parallel_habit: dict[str, Name] = Field(default_factory=dict)
    usual_networks: dict[str, UsualNetwork] = Field(default_factory=dict)
    zero_stage_habit: dict[str, UsualZeroStage] = Field(default_factory=dict)
    overlaps_when_asked: dict[str, Name] = Field(default_factory=dict)
    balanced_by_force: dict[str, Name] = Field(default_factory=dict)
    dropout_by_default: dict[str, Name] = Field(default_factory=dict)
    dropout_of_model: dict[str, HabitOfModel] = Field(default_factory=dict)
    attention_of_model: dict[str, HabitOfModel] = Field(default_factory=dict)
    activation_of_model: dict[str, HabitOfModel] = Field(default_factory=dict)
    source_facts: Annotated[tuple[SourceFact, ...], Listed] = ()
    recipes: dict[str, Recipe] = Field(default_factory=dict)

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
        entry = self._entry_said(text)
        return None if entry is None else self.framework_words[entry]

    def framework_stands_in(self, text: str) -> bool:
        """Whether a profile stands for a code that is not its own: a text names a profile's code only if it says nothing beside its name.

        Beside it may stand releases, dates and words of `framework_parts`; any other is of a fork, a library on top or a prototype.

        >>> names = load_names()
        >>> names.framework_stands_in("Megatron-LM (May 2021)"), names.framework_stands_in("Megatron-LLaMA (Megatron-LM fork, 2023)")
        (False, True)
        >>> names.framework_stands_in("nanotron"), names.framework_stands_in("XYZ")
        (False, True)
        """
        if text and self.find("frameworks", text) is not None:
            return False
        said = _bare_words(text)
        own = (name for name in (*self.frameworks, *self.framework_words) if name not in self.framework_stand_ins)
        return not any(
            (words := _bare_words(name)) and words <= said <= words | {*self.framework_parts} for name in own
        )

    def _entry_said(self, text: str) -> str | None:
        words, plain = words_of(text), text.lower()

        def said(word: str) -> bool:
            return word in words or ((len(word) > 5 or not word.isalnum()) and word in plain)

        return next((entry for entry in self.framework_words if all(map(said, entry.split(" + ")))), None)

    def framework_as_built(self, framework: str, text: str) -> str:
        """Return the profile of a framework whose text says that its layers are compiled or made of fused kernels, or eager.

        >>> load_names().framework_as_built("pytorch_fsdp", "FSDP + torch.compile")
        'pytorch_fsdp_fused'
        >>> load_names().framework_as_built("torchtitan", "torchtitan (FSDP2), eager")
        'torchtitan_eager'
        """
        plain = text.lower()
        if re.search(r"(without|no)[ -]torch.?compile|\beager\b", plain):
            return self.framework_variants.get(f"{framework} eager", framework)
        built = re.search(r"compile|fused kernels|transformer engine", plain) and "thunder" not in plain
        return self.framework_variants.get(f"{framework} compiled", framework) if built else framework

    def framework_today(self, framework: str, words: str, architecture: str, where: str = "") -> FrameworkOfTime | None:
        """Return what a code's name means for a run of these words (the first year or month in them is the run's) on this architecture.

        Args:
            where: it was published, which may hold a month, that of reading it at the latest, or the number of a paper: no run is later
                than that, and what the words tell goes before it.
        """
        told, year, month = (
            time_told(words) or month_submitted(where),
            self.year_of(words),
            month_of(words) or month_of(where),
        )
        known = (entry for entry in self.framework_of_time if entry.framework == framework)
        return next((entry for entry in known if entry.holds(told, year, month, architecture)), None)

    def year_of(self, words: str) -> str:
        """Return the latest year that words tell, or that what they name is of; "" if they tell none.

        >>> load_names().year_of("Megatron-LM (2021)"), load_names().year_of("llama2-7b flash attention 2")
        ('2021', '2023')
        """
        told = (year for word, since in self.words_since.items() if word in words.lower() for year in years_of(since))
        return max((*years_of(words), *told), default="")

    def framework_at(self, framework: str, version: str, architecture: str) -> str | None:
        """Return the profile of a framework at a version such as "26.04.01" on an architecture, if it has one of its own.

        >>> names = load_names()
        >>> names.framework_at("nemo", "24.07", "hopper"), names.framework_at("nemo", "25.09", "hopper")
        ('nemo_2024', None)
        """
        release = release_of(version)
        known = (entry for entry in self.framework_of_release if release and entry.framework == framework)
        return next((entry.profile for entry in known if entry.holds(release, architecture)), None)

    def framework_noted(self, framework: str, said: str) -> FrameworkOfNote | None:
        """Return what a framework means in a run whose words (in lower case) name something that its usual profile lacks."""
        known = (entry for entry in self.framework_of_note if entry.framework == framework)
        return next((entry for entry in known if any(word in said for word in entry.words)), None)

    def fact(self, of: str, field: str, gpu: str = "") -> SourceFact | None:
        """Return the first entry on a source (or a library) that has this field, for this GPU if it is about one; None if none does.

        >>> load_names().fact("Zero Bubble Pipeline Parallelism, Table 4", "network").network
        'roce'
        """
        return next((fact for fact in self._facts(of, field) if fact.gpu in ("", gpu)), None)

    def meant_by(self, source: str, field: str, word: str) -> tuple[str, str] | None:
        """Return (ours, where that was read) for a word that a source uses in a sense of its own, of a field that holds words.

        >>> load_names().meant_by("torchtitan benchmarks", "precision", "FP8")[0]
        'fp8_current'
        """
        for fact in self._facts(source, field):
            for theirs, ours in getattr(fact, field).items():
                if _plain(theirs) == _plain(word):
                    return ours, fact.source
        return None

    def _facts(self, of: str, field: str) -> Iterator[SourceFact]:
        lowered = of.lower()
        return (fact for fact in self.source_facts if getattr(fact, field) and fact.of.lower() in lowered)

    def framework_of(self, source: str, framework: str, version: str) -> tuple[str, str] | None:
        """Return (profile, where that was read) that a source has of its own at a version."""
        known = self.fact(source, "frameworks")
        if known is None or framework not in known.frameworks or version < known.since:
            return None
        return known.frameworks[framework], known.source

    def recipe_of(self, framework: str, row: tuple[str, str, str, str, str]) -> Recipe | None:
        """Return the recipe that a row (source, model, GPU, release, precision) was made with, if it is known."""
        return next((recipe for recipe in self.recipes.values() if recipe.holds(framework, row)), None)

    def dropout_of(self, model: str, framework: str) -> HabitOfModel | None:
        """Return why a model of this name trains with dropout under a code of this name; None where nothing says so."""
        return _habit(self.dropout_of_model, model, framework)

    def attention_of(self, model: str, framework: str, version: str) -> HabitOfModel | None:
        """Return the attention kernel that a model of this name has under a code of this name and release; None where nothing says so."""
        known = _habit(self.attention_of_model, model, framework)
        return known if known is None or not known.until or release_of(version) < release_of(known.until) else None

    def activation_of(self, model: str, framework: str) -> HabitOfModel | None:
        """Return the activation function that a model of this name writes out under a code of this name; None where nothing says so."""
        return _habit(self.activation_of_model, model, framework)

    def __hash__(self) -> int:
        return id(self)


def _habit(habits: Mapping[str, HabitOfModel], model: str, framework: str) -> HabitOfModel | None:
    """The first habit whose key begins the model's name, where the framework's words hold one of its builders."""
    known = next((habit for begin, habit in habits.items() if _plain(model).startswith(_plain(begin))), None)
    return known if known is not None and set(words_of(known.builders)) & set(words_of(framework)) else None


@functools.lru_cache(maxsize=2)
def load_names() -> NameTable:
    """Return the table of names shipped with the simulator, or the one in the working directory."""
    for root in data_roots():
        path = root / "hardware_specs" / "names.toml"
        if path.is_file():
            return load_spec(path, NameTable)
    return load_spec("hardware_specs/names.toml", NameTable)


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text: runs of letters and digits, lower case.

    >>> words_of("NVIDIA A100-SXM4-80GB")
    ('nvidia', 'a100', 'sxm4', '80gb')
    """
    return tuple(re.findall(r"[a-z0-9]+", text.lower()))


def _bare_words(text: str) -> frozenset[str]:
    """The words of a text without releases, commits and months."""
    return frozenset(word for word in words_of(text) if not re.fullmatch(_OF_TIME, word))


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
        fits = memory is None or _distance(gpu.memory, memory) <= _ECC_TOLERANCE
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
        odd = len((_MARKS & set(stem.split("_"))) ^ (_MARKS & set(words)))
        far = round(_distance(gpu.memory, said) / _NEAR) if said is not None else 0
        candidates.append((far, odd, plugs, -gpu.memory, stem))
    return FoundGpu(min(candidates)[-1], False) if candidates else None


def _generation(stem: str) -> str:
    """The part of a file's name that says which generation it is, as one word.

    >>> _generation("h100_80gb_sxm"), _generation("rtx_2080_ti"), _generation("tpu_v4"), _generation("quadro_rtx_8000")
    ('h100', '2080ti', 'tpuv4', '8000')
    """
    parts = re.sub(r"^(quadro_)?rtx_", "", stem).split("_")
    joined = len(parts) > 1 and (parts[0] in ("tpu", "ascend", "titan") or parts[1] == "ti")
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
