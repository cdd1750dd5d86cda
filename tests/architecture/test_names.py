"""One word per thing: the field's words, and none of their many synonyms (docs/glossary.md)."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.package_sources import ROOT, Source, package_sources

FORBIDDEN = {
    "worker": "rank",
    "workers": "ranks",
    "num_gpus": "world_size",
    "micro_batch": "microbatch",
    "micro_batches": "microbatches",
    "microbatchs": "microbatches",
    "mbs": "microbatch_size",
    "gbs": "global_batch_size",
    "bs": "microbatch_size or global_batch_size",
    "num_tp": "tensor_parallel",
    "num_pp": "pipeline_parallel",
    "model_parallel": "tensor_parallel or pipeline_parallel",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "a2a": "all_to_all",
    "comm_size": "message size",
    "activation_checkpointing": "recompute",
    "checkpointing": "recompute",
    "iteration": "step",
    "iterations": "steps",
    "num_iterations": "steps",
}
"""Word -> what to say.  A word is a whole identifier, or whole parts of one between underscores."""

ALLOWED = {
    "model_parallel_size": "GPUs of one replica: tensor times pipeline, which has no shorter name",
    "wait_for_workers": "a method of dask.distributed",
}

BORDER = ("cli", "calibration", "importers", "accuracy", "capture")
"""Rooms that read other people's tables and logs, whose columns bear other people's words."""


ANY = re.compile(rf"(?:^|_)({'|'.join(sorted(FORBIDDEN, key=len, reverse=True))})(?:_|$)")


@functools.cache
def word_in(identifier: str) -> str | None:
    """A forbidden word that a name holds: `micro_batch_size` -> micro_batch."""
    spelled = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", identifier).lower()
    found = ANY.search(spelled)
    return found.group(1) if found and spelled not in ALLOWED else None


def inside() -> list[Source]:
    """The files in which only our own words are spoken."""
    return [source for source in package_sources() if not "/".join(source.module[1:]).startswith(BORDER)]


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of all names in Python code; strings and comments are not names."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def test_code_speaks_the_fields_words() -> None:
    found = [
        f"{source.place}:{line}: {name} (say {FORBIDDEN[word]})"
        for source in inside()
        if any(
            word_in(word) for word in set(re.findall(r"\w+", source.text))
        )  # else nothing to tell names from text for
        for line, name in identifiers(source.text)
        if (word := word_in(name))
    ]
    assert [] == found


def test_keys_of_data_files_speak_them_too() -> None:
    keys = re.compile(r"^\s*([A-Za-z0-9_]+)\s*=", re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}: {key}"
        for folder in ("hardware_specs", "workloads")
        for path in sorted((ROOT / folder).rglob("*.toml"))
        for key in keys.findall(path.read_text())
        if path.name != "names.toml" and word_in(key)
    ]
    assert [] == found


def test_docstrings_spell_microbatch_as_one_word() -> None:
    spellings = re.compile(r"\bmicro[- ]batch", re.IGNORECASE)
    found = [
        f"{source.place}:{getattr(node, 'lineno', 1)}"
        for source in inside()
        for node in source.nodes
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        if spellings.search(ast.get_docstring(node) or "")
    ]
    assert [] == found


@pytest.mark.parametrize("name", ["micro_batch_size", "MicroBatch", "numWorkers", "tp_allreduce", "mbs"])
def test_a_synonym_is_seen(name: str) -> None:
    assert word_in(name)


@pytest.mark.parametrize("name", ["microbatch_size", "all_reduce", "rank", "model_parallel_size", "absolute", "gbspan"])
def test_a_proper_name_passes(name: str) -> None:
    assert word_in(name) is None
