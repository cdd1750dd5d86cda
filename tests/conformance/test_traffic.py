"""Bytes of memory-bound kernels, and kernels started, beside our lowering, phase by phase, of the plans that the other tests hold.

Casts, copies and divisions around the exchange of weights and gradients stand in the phase that they run in.  Profiles are those of codes
on a GPU: what is otherwise on a CPU or in a script says `PROFILES`.  Beyond a tolerance, that of a kind of code, a difference stands in
`BESIDE` with its bytes and its reason.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from simulator.program.program import COMPUTE, Program
from tests.conformance.comparing import captured, llama_job, lowered, operators
from tests.conformance.test_plans import CASES, Case, ends_apart
from tests.profiles import profile

pytestmark = pytest.mark.slow

LISTS = {"updates_in_lists": "true", "clips_gradients": "false"}
"""The scripts' update: torch.optim.AdamW as it is by default, without a norm of gradients."""
PLAIN_NORM = {"fused_norm": "false"}
REPEATING = {"repeats_keys": "true", "attention": '"sdpa_2025"'}
"""Keys are repeated for the kernel, which that of today's releases takes in groups."""
SCRIPTS_OWN = LISTS | PLAIN_NORM | REPEATING | {"joined_qkv": "false", "joined_gate": "false"}
PROFILES = {
    "pytorch_ddp": SCRIPTS_OWN,
    "pytorch_fsdp": SCRIPTS_OWN,
    "torchtitan_eager": LISTS | REPEATING,
    "torchtitan_2025_eager": LISTS | PLAIN_NORM | REPEATING,
    "torchtitan_2026_eager": LISTS | PLAIN_NORM | {"picks_rows": '"gather"'},
    "library.py:step": LISTS | PLAIN_NORM,
    "transformers, fsdp2": LISTS | PLAIN_NORM | {"copies_gathered": "true", "flat_units": "false"},
}
"""What a profile, a script or a case is on a CPU beside its profile: a norm is plain operations, FSDP2 not FSDP1, no sum sorts."""


class Amount(NamedTuple):
    """Bytes, and launches."""

    bytes: float = 0.0
    launches: float = 0.0


TOLERANCES = {
    "parallel.py:step": Amount(0.015, 0.06),
    "library.py:step": Amount(0.01, 0.12),
    "titan.py:step": Amount(0.03, 0.08),
    "exchange": Amount(0.032, 0.16),
    "ring": Amount(0.032, 0.11),
}
"""Kind of code -> relative.  Operators on one number of each token (masks of a split vocabulary, means and scales of norms, places) are
no large pass, and not lowered one by one: a few in plain PyTorch, more with transformers (tables of cosines, made in each step) and
where torchtitan's experts are exchanged (their rows are counted, read by the host, and put in order by numbers of tokens).
Rank 0 of a ring sees halves of queries alone, ours the mean of them and of halves of keys."""
TOKENS, LAYERS, TABLE, LOGITS = 2048, 4, 32_000 * 1024, 2048 * 32_000
SPLIT_TABLE = Amount(TABLE / 2 * 6.0)
"""DTensor's embedding makes the gradient of the whole table on every rank (2 bytes of half of it), and copies its part out (4)."""
WIDENED = Amount(LOGITS * 6.0, 1)
"""accelerate widens a model's outputs: the logits once more, for nobody."""
CHECKED = Amount(launches=4 * LAYERS)
"""torchtitan checks the places of every layer by three kernels, and looks up what its heads are turned by."""
HEADS = LAYERS * TOKENS * (16 + 4) * 64 / 2
"""Numbers of queries and keys on a rank of two."""
LATENTS = LAYERS * TOKENS / 2 * (384 + 256)
"""Numbers of latents beside its own tokens' that a tensor-parallel rank of torchtitan makes and norms: those of all tokens."""
BESIDE: dict[str, dict[str, tuple[Amount, ...]]] = {
    "fsdp2, tensor, sequence": {"backward": (SPLIT_TABLE,)},
    # cosines and sines in fp32, 5.5 + 4.5 passes and casts (7.5 + 7.5 backward); Llama and DeepSeek-V3 turn by complex numbers, 10 bytes
    "torchtitan's Qwen3": {
        "forward": (Amount(HEADS * 32.0, 8 * LAYERS),),
        "backward": (Amount(HEADS * 52.0, 8 * LAYERS),),
    },
    "torchtitan's Qwen3, context": {
        "forward": (Amount(HEADS * 32.0, 8 * LAYERS),),
        "backward": (Amount(HEADS * 52.0, 8 * LAYERS),),
    },
    "torchtitan's DeepSeek-V3, experts, tensor": {
        "forward": (Amount(LATENTS * 34.0),),
        "backward": (SPLIT_TABLE, Amount(LATENTS * 82.0)),
    },
    **{name: {"forward": (WIDENED,)} for name in ("transformers", "transformers, recompute", "transformers' Qwen3")},
}
"""What a code does beside ours, by case and phase."""


def moved(program: Program) -> dict[str, Amount]:
    """Return what memory-bound kernels move and how many kernels start, by phase."""
    size, starts = Counter[str](), Counter[str]()
    for table, row, times in operators(program):
        if table.kind[row] == COMPUTE:
            starts[table.phase[row]] += times * int(table.launches[row])
            if table.work[row] == "memory_bound":
                size[table.phase[row]] += times * float(table.read[row] + table.written[row])  # type: ignore[assignment]
    return {phase: Amount(size[phase], starts[phase]) for phase in starts}


def as_it_runs_here(name: str, case: Case, folder: Path) -> Program:
    """Return our program of a case under its profile as it is on a CPU."""
    framework = case.plan["framework"]
    changes = PROFILES.get(name) or PROFILES.get(case.script) or PROFILES[framework]
    plan = case.plan | {"framework": profile(folder, "as_it_runs_here", framework, **changes)}
    precision = "bf16_true" if "--half" in case.words else "fp32" if "ddp" in case.words else "bf16"
    model = ({} if case.script == "parallel.py:step" else {"positions": "rotary"}) | case.model
    return lowered(llama_job(gpus=case.world, model=model, precision=precision, **plan))


@pytest.mark.parametrize("name", CASES)
def test_a_step_moves_and_starts_what_ours_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the update where it runs over lists: DTensors without FSDP take it one by one."""
    case = CASES[name]
    ends_apart(tmp_path)
    monkeypatch.chdir(tmp_path)
    theirs, ours = moved(captured(case.script, case.world, case.words)), moved(as_it_runs_here(name, case, tmp_path))
    kind = "ring" if "--context" in case.words else "exchange" if "--expert-ranks" in case.words else case.script
    tolerance = TOLERANCES[kind]

    for phase in ("forward", "recompute", "backward"):
        there, here = theirs.get(phase, Amount()), ours.get(phase, Amount())
        beside = BESIDE.get(name, {}).get(phase, ())
        beside += (CHECKED,) if case.script == "titan.py:step" and phase in theirs and phase != "backward" else ()
        assert here.bytes + sum(b.bytes for b in beside) == pytest.approx(there.bytes, rel=tolerance.bytes), phase
        assert here.launches + sum(b.launches for b in beside) == pytest.approx(
            there.launches, rel=tolerance.launches
        ), phase
    if "--half" not in case.words:
        assert ours["optimizer"].bytes == pytest.approx(theirs["optimizer"].bytes, rel=1e-3)
