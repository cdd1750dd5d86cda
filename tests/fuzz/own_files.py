"""Our own files and words: jobs, data files, layouts, studies, programs, orders, settings."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel

from simulator.hardware.checkpoint import Checkpoint
from simulator.hardware.coefficients import Profile
from simulator.hardware.jitter import Jitter
from simulator.hardware.parts import Part
from simulator.hardware.power import Power
from simulator.hardware.reliability import Reliability
from simulator.job import JobFile
from simulator.partition.layout_file import LayoutFile
from simulator.plan.plan import Plan
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Shape
from simulator.studies.study_file import StudyFile
from simulator.workload.model import Model
from tests.fuzz.inputs import Input, mutated, mutated_text, shipped, shipped_names, toml_text
from tests.fuzz.values import as_toml, field_value, fields_of, table_of, text

__all__ = ["SMALL", "collectives", "data_files", "jobs", "layouts", "models", "orders", "profiles", "programs", "searches",
           "settings_of_a_job", "studies", "weeks"]  # fmt: skip

JOBS = ("gpt2_124m_1gpu", "gpt2_124m_2gpu", "llama_7b_4x4090", "llama3_8b_fsdp_8xh100", "gpt3_175b")
SMALL = ("--set", "plan.tensor_parallel=1", "--set", "workload.global_batch_size=32", "--set", "cluster.gpus=8")
_VERBS = 2 * (("run",), *3 * (("compare", "--vary", "plan.recompute=none,full"),)) + (("explain",),)
"""What reads a job; `run` and `explain` look for another plan where it does not fit, which takes a hundred times as long."""
Draw = Callable[[Random], Input]


def jobs(draw: Random) -> Input:
    """A shipped job: its tables with mutations, parts and noise among them."""
    job = copy.deepcopy(shipped("jobs", draw.choice(JOBS)))
    table = draw.choice(("plan", "plan", "plan", "workload", "cluster", "jitter", "model"))
    if table == "jitter":
        job["jitter"] = table_of(draw, Jitter)
        return Input({"job.toml": toml_text(job)}, ("run", "job.toml", "--samples", "20", "--json"))
    if table == "model":
        job["model"] = mutated(draw, {"layers": 8}, Model)
    elif table == "cluster":
        job["cluster"]["parts"] = [table_of(draw, Part) for _ in range(draw.randint(1, 2))]
    else:
        cls = Plan if table == "plan" else type(JobFile.model_fields["workload"].default)
        job[table] = mutated(draw, job.get(table, {}), cls)
    verb, *words = draw.choice(_VERBS)
    return Input({"job.toml": toml_text(job)}, (verb, "job.toml", *words, "--json"))


_WEEKS: dict[str, tuple[type[BaseModel], tuple[dict[str, Any], ...]]] = {
    "reliability": (
        Reliability,
        (
            {"fleet": "meta_llama3_2024", "detection": "1 min", "restart": "10 min"},
            {"failures": [{"component": "gpu", "mtbf": "500 h"}], "spares": 2, "repair": "24 h"},
            {"failures": [{"component": "gpu", "effect": "slow", "mtbf": "90 h", "clock": 0.8, "detection": "2 h"}]},
            {"failures": [{"component": "switch", "mtbf": "9000 h", "nodes": 32, "shape": 0.7}], "restart": {"drain": "30 s"}},
            {"failures": [{"component": "host", "mtbf": "700 h", "effect": "corrupt"}], "maintenance": {"every": "7 d", "length": "1 h"}},
        ),
    ),
    "checkpoint": (
        Checkpoint,
        (
            {"interval": "30 min", "write": "auto", "mode": "asynchronous", "bandwidth": "2 TB/s", "interference": 0.1},
            {"interval": "auto", "write": "60 s"},
            {"interval": "10 min", "write": "60 s", "mode": "memory", "persist": "2 h", "persist_write": "5 min"},
        ),
    ),
    "power": (Power, ({"cap": "300 W", "grid": "0.1 kg/kWh"}, {})),
}  # fmt: skip


def weeks(draw: Random) -> Input:
    """A small job with tables about failures, checkpoints and power."""
    job = copy.deepcopy(shipped("jobs", "gpt2_124m_2gpu"))
    for table, (cls, bases) in _WEEKS.items():
        base = copy.deepcopy(draw.choice(bases))
        job[table] = mutated(draw, base, cls) if draw.random() < 0.5 else base
    return Input({"job.toml": toml_text(job)}, ("goodput", "job.toml", "--samples", "5", "--no-levers", "--json"))


def data_files(kind: str, cls: type[BaseModel], command: Callable[[str], tuple[str, ...]]) -> Draw:
    """A shipped data file of a kind, mutated, in the working directory, where it hides the package's own."""

    def draw_file(draw: Random) -> Input:
        name = draw.choice(shipped_names(kind))
        path = f"hardware_specs/{kind}/{name}.toml"
        return Input({path: toml_text(mutated(draw, shipped(kind, name), cls))}, command(name))

    return draw_file


def models(draw: Random) -> Input:
    """A shipped model with few layers, mutated, on as many GPUs as it takes."""
    name = draw.choice(shipped_names("models"))
    base = shipped("models", name)
    if isinstance(base.get("layers"), int) and draw.random() < 0.8:
        base = {**base, "layers": min(base["layers"], 4)}
    words = ("--set", "plan.zero_stage=3", "--set", "workload.global_batch_size=64", "--set", "cluster.gpus=64")
    path = f"workloads/models/{name}.toml"
    return Input(
        {path: toml_text(mutated(draw, base, Model))},
        ("run", "--model", name, "--cluster", "dgx_h100", *words, "--json"),
    )


_LAYOUTS: tuple[dict[str, Any], ...] = (
    {"name": "both", "mesh": {"rows": 2, "cols": 2}, "rules": {"batch": "rows", "heads": "cols", "ffn": "cols", "vocab": "cols"}},
    {"name": "zero_3", "mesh": {"data": 4}, "activations": {"batch": "data"}, "weights": {"hidden": "data"}},
    {"name": "one", "mesh": {"rows": 2, "cols": 4}, "rules": {"batch": ["rows", "cols"]}, "tensors": {"mlp up weight": {"ffn": "cols"}}},
    {"name": "words", "mesh": {"rows": 2, "cols": 2}, "sbp": {"mlp up weight": ["B", "S(1)"], "mlp down weight": ["B", "S(0)"]}},
)  # fmt: skip
_DIMENSIONS = (
    "batch",
    "sequence",
    "hidden",
    "heads",
    "ffn",
    "vocab",
    "head_dim",
    "mlp up weight.ffn",
    "qkv weight.heads",
)


def layouts(draw: Random) -> Input:
    """A layout as a file or in words, mutated, of a small model."""
    model = draw.choice(("gpt2_124m", "llama3_8b", "mixtral_8x7b", "t5_3b")) if draw.random() < 0.2 else "gpt2_124m"
    words: tuple[str, ...] = draw.choice(
        ((), (), ("--propagate",), ("--choose",), ("--cluster", "dgx_a100"), ("--sbp",))
    )
    if draw.random() < 0.7:
        layout = copy.deepcopy(draw.choice(_LAYOUTS))
        places = layout.setdefault(draw.choice(("rules", "weights", "activations")), {})
        places[draw.choice(_DIMENSIONS[:7])] = draw.choice([*layout["mesh"]])
        if draw.random() < 0.4:
            layout = mutated(draw, layout, LayoutFile)
        return Input({"layout.toml": toml_text(layout)}, ("layout", model, "--layout", "layout.toml", *words, "--json"))
    axes = draw.sample(("rows", "cols", "depth", text(draw) or "x"), draw.randint(1, 3))
    mesh = ",".join(f"{axis}={draw.choice((1, 2, 2, 3, 4, 12, 10**6))}" for axis in axes)
    maps = [("--map", f"{draw.choice(_DIMENSIONS)}={draw.choice(axes)}") for _ in range(draw.randrange(4))]
    if draw.random() < 0.3:
        words += ("--layout", draw.choice(("megatron", "summa_2d", "tesseract", "cubic_3d", "whole_vocabulary")))
    return Input({}, ("layout", model, "--mesh", mesh, *(word for pair in maps for word in pair), *words, "--json"))


def studies(draw: Random) -> Input:
    """A study of a few points, mutated, now and then with a damaged file of results to go on from."""
    plan = fields_of(Plan)
    key = draw.choice(sorted(plan))
    values = [field_value(draw, key, plan[key]) for _ in range(draw.randint(1, 2))]
    base = {
        "name": "small", "model": "gpt2_124m", "cluster": "h100_x8", "set": ["workload.global_batch_size=16"],
        "vary": {"plan.zero_stage": [0, 1], f"plan.{key}": values},
    }  # fmt: skip
    files = {"study.toml": toml_text(mutated(draw, base, StudyFile) if draw.random() < 0.6 else base)}
    words = ("sweep", "study.toml", "--processes", "1", "-o", "out.csv", "--json")
    if draw.random() < 0.3:
        line = (
            json.dumps(["a7e915b754ee0acfa20fbe2df78716ab", {"status": "ok", "reason": None, "step_time_s": 0.03}])
            + "\n"
        )
        files["out.results.jsonl"] = mutated_text(draw, line * 2)
        words += ("--resume",)
    return Input(files, words)


_PROGRAM = (
    (Path(__file__).parents[1] / "data" / "two_ranks.program").read_text().replace("cp+dp", "tp").replace(" step=1", "")
)
"""With groups that its mesh has, and one step."""


def programs(draw: Random) -> Input:
    """A program's text with lines changed, and run."""
    return Input(
        {"step.program": mutated_text(draw, _PROGRAM)}, ("run", "step.program", "--cluster", "dgx_a100", "--json")
    )


def settings_of_a_job(draw: Random) -> Input:
    """--set with values of the class, from the command line."""
    return Input({}, ("run", draw.choice(JOBS), *_settings(draw, "--set", draw.randint(1, 3)), "--json"))


def searches(draw: Random) -> Input:
    """A search over a few values of one or two fields, or the largest that fits, with any values."""
    if draw.random() < 0.2:
        what = draw.choice((("--fewest", "gpus"), ("--largest", "batch"), ("--largest", "sequence")))
        return Input({}, ("fit", "gpt2_124m", "--cluster", "h100_x8", *what, *_settings(draw, "--fix", 1), "--json"))
    words = ["--range", f"plan.zero_stage={draw.choice(('0,1', '1,3', '0'))}", *_settings(draw, "--fix", 1)]
    if draw.random() < 0.3:
        words += ["--strategy", draw.choice(("grid", "descent", "random", "annealing")), "--tries", "3"]
    return Input({}, ("search", "gpt2_124m_2gpu", *words, "--json"))


def _settings(draw: Random, option: str, count: int) -> list[str]:
    fields = fields_of(Plan)
    words: list[str] = []
    for key in draw.sample(sorted(fields), count):
        words += [option, f"plan.{key}={as_toml(field_value(draw, key, fields[key]))}"]
    return words


def orders(draw: Random) -> Input:
    """A pipeline order with cells moved, doubled, dropped or changed; half of them a swap of neighbours, which may well run."""
    rows = [list(row) for row in _order(draw.choice(("one_f_one_b", "gpipe", "zb_h1")), draw.choice((2, 3, 4)))]
    for _ in range(draw.randint(1, 2)):
        row = draw.choice(rows)
        at, other = draw.randrange(len(row)), draw.randrange(len(row))
        if draw.random() < 0.6:
            other = min(at + 1, len(row) - 1)
            row[at], row[other] = row[other], row[at]
        else:
            row[at] = draw.choice((row[other], row[at], "", "0F0", "2B9", "1W1", "x", "(0F1;0B0)", text(draw)))
    return Input({"order.csv": "\n".join(map(",".join, rows)) + "\n"}, ("schedule", "order.csv", "--json"))


@functools.cache
def _order(schedule: str, ranks: int) -> tuple[tuple[str, ...], ...]:
    shape, member = Shape(ranks, 4), SCHEDULES.get(schedule)
    lines = member.order(shape, member.placement(shape)).to_text().splitlines()
    return tuple(tuple(line.split(",")) for line in lines)


_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
_ALGORITHMS = ("auto", "auto", "ring", "tree", "nvls", "pat", "collnet_direct", "torus")


def collectives(draw: Random) -> Input:
    """Any collective on any cluster, in shapes that mostly can be."""
    each, nodes = draw.choice((1, 2, 4, 8)), draw.choice((1, 2, 3, 16, 512))
    words = ["--ranks", str(each * nodes), "--nodes", str(nodes), "--cluster", draw.choice(shipped_names("clusters"))]
    size = (
        f"{10 ** draw.uniform(-1, 13):.4g} B"
        if draw.random() < 0.4
        else draw.choice(("8B", "1KiB", "1MiB", "1GiB", "0.5B"))
    )
    words += ["--size", size, "--algorithm", draw.choice(_ALGORITHMS)]
    if draw.random() < 0.2:
        words += draw.choice(
            (("--groups", "3"), ("--protocol", "ll"), ("--protocol", "ll128"), ("--protocol", "simple"))
        )
    return Input({}, ("collective", draw.choice(_KINDS), *words, "--json"))


def profiles(draw: Random) -> Input:
    """What collectives attain on Hopper's NVLinks, mutated."""
    table = mutated(draw, shipped("calibrations", "nccl_hopper_nvlink"), Profile)
    words = ("collective", draw.choice(_KINDS), "--cluster", "dgx_h100", "--ranks", "8", "--size", "1MiB", "--json")
    return Input({"hardware_specs/calibrations/nccl_hopper_nvlink.toml": toml_text(table)}, words)
