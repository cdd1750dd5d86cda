"""What others measured or wrote: tables, logs, traces, configs, launch lines."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.inputs import DATA, Input, lines_of, mutated_table, mutated_text
from tests.fuzz.values import close_to

__all__ = ["imports", "logs_of_collectives", "model_configs", "tables", "training_logs"]


def tables(*of: tuple[list[str], tuple[str, ...]]) -> Callable[[Random], Input]:
    """One of some tables with cells changed, and the command that reads it."""

    def draw_table(draw: Random) -> Input:
        base, command = draw.choice(of)
        return Input({"table.csv": mutated_table(draw, base)}, command)

    return draw_table


def measured_kernels(kind: str) -> tuple[list[str], tuple[str, ...]]:
    """A table as `dtsim measure` writes it, and what fits it."""
    if kind == "overlap":
        lines = ["gpu,kind,beside,alone_s,beside_s,slowdown,software"]
        for beside, slow in (
            ("copy", 1.08),
            *((f"{k} multiprocessors", 132 / (132 - 1.2 * k)) for k in (4, 8, 16, 32)),
        ):
            lines.append(f"h100_80gb_sxm,gemm,{beside},0.0016,{0.0016 * slow:.6g},{slow:.4g},torch 2.13.0")
    elif kind == "memory":
        lines = ["op,gpu,bytes,time_ms"]
        lines += [f"copy,a100_80gb_sxm,{2**p},{1e3 * (6e-6 + 2**p / 1.4e12):.6g}" for p in range(16, 31)]
        lines.append("launch,a100_80gb_sxm,8,0.002")
    else:
        lines = lines_of("attention_measurements.csv", 30, "fa,a100")
    return lines, (
        "calibrate",
        kind,
        "table.csv",
        "--output",
        "interference_new.toml" if kind == "overlap" else "new.toml",
    )


@functools.cache
def _texts(folder: str) -> dict[str, str]:
    """The files of a folder of tests/data; bytes that are no text are kept as surrogates."""
    files = (path for path in sorted((DATA / folder).iterdir()) if path.is_file())
    return {path.name: path.read_bytes().decode("utf-8", "surrogateescape") for path in files}


def imports(draw: Random) -> Input:
    """A file of another program with one or two numbers, words or lines changed."""
    name = draw.choice(tuple(_texts("imports")))
    words = draw.choice(((), ("--cluster", "dgx_h100")))
    return Input({name: mutated_text(draw, _texts("imports")[name])}, ("import", name, *words, "--json"))


def logs_of_collectives(draw: Random) -> Input:
    """A log of nccl-tests or rccl-tests, as text, JSON or a table with its index, changed and fitted."""
    words = ("--cluster", "dgx_h100", "--ranks", "8", "--output", "new.toml", "--all", "--json")
    if draw.random() < 0.3:
        files = dict(_texts("nccl_logs"))
        name = draw.choice(tuple(files))
        files[name] = mutated_table(draw, files[name].strip().split("\n"))
        return Input(files, ("validate", "index.csv", "--kind", "nccl", "--json"))
    name = draw.choice(tuple(_texts("nccl_raw")))
    return Input({name: mutated_text(draw, _texts("nccl_raw")[name])}, ("calibrate", "nccl", name, *words))


_CONFIGS: tuple[dict[str, Any], ...] = (
    {
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "vocab_size": 32000, "max_position_embeddings": 2048, "tie_word_embeddings": False,
    },
    {"model_type": "gpt2", "n_embd": 768, "n_layer": 4, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
    {
        "model_type": "mixtral", "hidden_size": 512, "intermediate_size": 1792, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096, "num_local_experts": 8,
        "num_experts_per_tok": 2, "sliding_window": 1024,
    },
)  # fmt: skip


def model_configs(draw: Random) -> Input:
    """A config.json of a model with one or two values changed, trained."""
    config = dict(draw.choice(_CONFIGS))
    for _ in range(draw.randint(1, 2)):
        key = draw.choice([key for key in config if key != "model_type" or draw.random() < 0.3])
        near = close_to(draw, config[key])
        config[key] = (
            near if near is not None and draw.random() < 0.8 else draw.choice((None, 0, -1, 7, "x", 1e30, [1], True))
        )
    words = ("--set", "plan.zero_stage=1", "--cluster", "h100_x8", "--json")
    return Input({"config.json": json.dumps(config)}, ("run", "--model", "config.json", *words))


_STEP = (
    " [2026-01-01 10:00:00] iteration {i:8d}/ 500 | consumed samples: {n:12d} | elapsed time per iteration (ms): {ms:.1f} | "
    "throughput per GPU (TFLOP/s/GPU): 410.1 | learning rate: 1.0E-05 | global batch size: {batch:5d} | lm loss: 1 |"
)
_PROGRESS = " {i}%|# | {i}/100 [01:23<12:00,  {s:.2f}s/it]"


def training_logs(draw: Random) -> Input:
    """A log of a run beside the prediction of a job."""
    form = draw.choice((_STEP, _STEP, _PROGRESS, "{{'train_runtime': 10.0, 'train_steps_per_second': {s:.2f}}}"))
    lines = [form.format(i=i, n=16 * i, ms=100 + i % 5, s=0.1 + i % 3 / 100, batch=16) for i in range(1, 12)]
    return Input(
        {"train.log": mutated_text(draw, "\n".join(lines))},
        ("run", "gpt2_124m_2gpu", "--measured", "train.log", "--json"),
    )
