"""Both sides of a comparison in the same words: what a code does as it was recorded, and our own lowering of the same plan.

What scripts did is kept in tests/data/recordings, so that a comparison needs neither PyTorch nor the codes; `nox -s capture` records it
anew.
"""

from __future__ import annotations

import functools
import lzma
import math
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.capture.child import captures
from simulator.capture.program import captured_program
from simulator.capture.record import Capture, read_capture, write_capture
from simulator.job import Job, job_from_data
from simulator.lowering import lower
from simulator.program.program import COLLECTIVE, COMPUTE, Link, Program
from tests.package_sources import ROOT

SCRIPTS = Path(__file__).parent / "scripts"
RECORDINGS = ROOT / "tests/data/recordings"
ANEW = "DTSIM_RECORD"
"""Set in the environment: scripts run, and what is kept of them is written anew."""
LIBRARIES = {
    "gpt.py": "megatron.core", "library.py": "accelerate", "titan.py": "torchtitan", "trainer.py": "accelerate", "zero.py": "deepspeed",
}  # fmt: skip
"""Script -> what it needs beside PyTorch."""
MODEL = {
    "name": "conformance", "family": "llama", "hidden": 1024, "ffn": 2816, "layers": 4, "heads": 16, "kv_heads": 4,
    "vocabulary": 32000, "sequence_length": 2048, "gated_mlp": True, "norm": "rms_norm", "positions": "none",
    "tied_embeddings": False, "linear_bias": False, "qkv_bias": False,
}  # fmt: skip


def recorded(script: str, world: int, arguments: str = "", release: str = "") -> Capture:
    """Return what a script of this folder does on rank 0.

    Args:
        release: of a library, in a folder of this name in the environment; "" = the environment's own.
    """
    return _recordings(script, world, arguments, release, (0,))[0]


def ranks_of(script: str, world: int, arguments: str = "") -> list[Capture]:
    """Return what each rank of a pipeline does."""
    return _recordings(script, world, arguments, "", ())


@functools.cache
def _recordings(script: str, world: int, arguments: str, release: str, ranks: tuple[int, ...]) -> list[Capture]:
    """Return what is kept of a script; where `ANEW` is set the script runs, and what it did is kept."""
    words = f"{script} {world} {arguments} {release}{'' if ranks else ' all'}"
    file = RECORDINGS / f"{re.sub('[^a-z0-9]+', '_', words.lower()).strip('_')}.xz"
    if ANEW not in os.environ:
        assert file.exists(), f"{file.name} is not kept: nox -s capture"
        return [read_capture(line) for line in lzma.decompress(file.read_bytes()).decode().splitlines()]
    library = LIBRARIES.get(script.partition(":")[0], "torch")
    pytest.importorskip(library, reason=f"the witness is {library}: nox -s capture")
    folder, path = Path(sys.prefix) / release, os.environ.get("PYTHONPATH", "")
    if not folder.exists():
        pytest.skip(f"the witness is {release}: nox -s capture")
    with pytest.MonkeyPatch.context() as patch:
        if release:
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), path))))
        made = captures(str(SCRIPTS / script), world, ranks, arguments.split(), seconds=600.0)
    text = "\n".join(write_capture(replace(one, script=script, notes=())) for one in made)
    if not file.exists() or lzma.decompress(file.read_bytes()).decode() != text:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(lzma.compress(text.encode(), preset=9))
    return made


def captured(script: str, world: int, arguments: str = "", release: str = "") -> Program:
    """Return the program of a script."""
    return captured_program(recorded(script, world, arguments, release))


@functools.cache
def pipeline(script: str, world: int, arguments: str = "") -> Program:
    """Return the program of all ranks of a pipeline."""
    return captured_program(ranks_of(script, world, arguments))


def llama_job(
    framework: str,
    gpus: int,
    model: dict[str, Any] | None = None,
    microbatches: int = 1,
    precision: str = "bf16",
    **plan: Any,
) -> Job:
    """Return the job that the scripts' model is under a plan; a field of the model that is None is left out.

    Args:
        microbatches: of one sequence each, one after the other.
    """
    width = int(plan.get("tensor_parallel", 1)) * int(plan.get("context_parallel", 1))
    data = {
        "model": {key: value for key, value in (MODEL | (model or {})).items() if value is not None},
        "workload": {
            "sequence_length": 2048,
            "global_batch_size": microbatches * (gpus // width),
            "precision": precision,
            "optimizer": "adam",
        },
        "plan": {"framework": framework, "microbatch_size": 1} | plan,
        "cluster": {"name": "dgx_h100", "gpus": gpus},
    }
    return job_from_data(data, "the scripts' Llama", ())


def lowered(job: Job) -> Program:
    """Return our program of a job."""
    return lower(job.workload, job.plan, job.cluster.world_size)


def operators(program: Program) -> list[tuple[Any, int, int]]:
    """Every row of every table that runs: (table, row of it, how often)."""
    runs = Counter(program.item.tolist())
    return [
        (table, row, runs[number] * count)
        for number, item in enumerate(program.items)
        if not isinstance(item, Link)
        for table, count in item.pieces
        for row in range(len(table))
    ]


def flops_of(program: Program, phase: str) -> float:
    """Return the FLOP of a phase."""
    return sum(times * float(table.flops[row]) for table, row, times in operators(program) if table.phase[row] == phase)


def products_of(program: Program, phase: str) -> Counter[tuple[Any, ...]]:
    """Return the products and attention of a phase by shape and call, with how often each runs; of PyTorch's own kernel, of any release."""
    out: Counter[tuple[Any, ...]] = Counter()
    for table, row, times in operators(program):
        if table.phase[row] == phase and table.kind[row] == COMPUTE and table.work[row] in ("gemm", "attention"):
            out[(table.work[row], *map(int, table.shape[row]), str(table.call[row]).replace("sdpa_2025", "sdpa"))] += (
                times
            )
    return out


def scores_of(program: Program, phase: str) -> float:
    """Return how many scores the attention kernels of a phase touch: queries x keys of every head."""
    return sum(
        times * math.prod(map(int, table.shape[row][:3])) * float(table.call[row].keys)
        for table, row, times in operators(program)
        if table.phase[row] == phase and table.work[row] == "attention"
    )


Message = tuple[str, str, float, str]
"""Kind, axes, bytes and number format."""


def messages_of(program: Program, axes: dict[str, str] | None = None) -> Counter[Message]:
    """Return messages with how often each is sent; not that of the norm of the gradients.

    Args:
        axes: names of axes -> those to tell instead.
    """
    return Counter(message for message, _ in sent_by(program, axes))


def sent_by(program: Program, axes: dict[str, str] | None = None) -> list[tuple[Message, bool]]:
    """Return messages in the order of the program, and of each whether it is sent within a layer (else units, buckets and stages)."""
    out: list[tuple[Message, bool]] = []
    names = {name: (axes or {}).get(name, name) for name, size in program.axes if size > 1}
    within = {number: _within(item, names) for number, item in enumerate(program.items) if not isinstance(item, Link)}
    for number in program.item.tolist():
        item = program.items[number]
        if not isinstance(item, Link):
            out += within[number]
        elif item.collective and "gradient norm" not in item.name:
            out.append(((item.collective, _shown(item.group, names), item.message, item.dtype), False))
    return out


def _within(item: Any, names: dict[str, str]) -> list[tuple[Message, bool]]:
    return [
        ((table.work[row], _shown(table.group[row], names), float(table.message[row]), table.dtype[row]), True)
        for table, count in item.pieces
        for row in list(range(len(table))) * count
        if table.kind[row] == COLLECTIVE
    ]


def _shown(group: tuple[str, ...], names: dict[str, str]) -> str:
    return "+".join(sorted(names[a] for a in group if a in names))


def by_axes(program: Any, **names: str) -> Counter[tuple[str, str]]:
    """Bytes of messages by kind and axes: the norms' buffer and the format of the loss's messages are told apart there only.

    Args:
        names: of axes -> those to tell instead.
    """
    out: Counter[tuple[str, str]] = Counter()
    for (kind, axes, size, _), times in messages_of(program, names).items():
        out[(kind, axes)] += size * times
    return out


def in_the_same_order(
    theirs: list[tuple[Message, bool]], ours: list[tuple[Message, bool]], different: set[Message]
) -> bool:
    """Whether what both send over the same axes they send in the same order: within layers, and between them.

    Args:
        different: messages that one of them sends more often.
    """
    for place in {(within, message[1]) for message, within in ours}:
        sent = [message for message, within in ours if (within, message[1]) == place and message not in different]
        if [message for message, _ in theirs if message in set(sent)] != sent:
            return False
    return True
