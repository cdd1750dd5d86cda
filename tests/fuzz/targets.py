"""What is fuzzed: per kind of input a valid file with one or two mutations, and the command that reads it."""

from __future__ import annotations

import copy
import functools
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel

from simulator.hardware.checkpoint import Checkpoint
from simulator.hardware.cluster import ClusterSpec, Node
from simulator.hardware.coefficients import Profile
from simulator.hardware.gpu import Gpu
from simulator.hardware.jitter import Jitter
from simulator.hardware.link import Link
from simulator.hardware.parts import Part
from simulator.hardware.power import Power
from simulator.hardware.reliability import Fleet, Reliability
from simulator.job import JobFile
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan
from simulator.plan.recompute_policy import RecomputePolicy
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Shape
from simulator.specs import data_roots, names
from simulator.workload.model import Model
from tests.fuzz.values import as_toml, close_to, field_value, fields_of, garbage, table_of, text

__all__ = ["TARGETS", "Input", "Target"]

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
JOBS = ("gpt2_124m_1gpu", "gpt2_124m_2gpu", "llama_7b_4x4090", "llama3_8b_fsdp_8xh100", "gpt3_175b")
SMALL = ("--set", "plan.tensor_parallel=1", "--set", "workload.global_batch_size=32", "--set", "cluster.gpus=8")
_TOPS = {"models": "workloads", "jobs": "workloads"}
_FREE = {"name", "aliases", "sources", "notes", "extends"}
"""Fields that say nothing about what is computed."""


@dataclass(frozen=True, slots=True)
class Input:
    """Files to write (path to text) and the command."""

    files: dict[str, str]
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of input, and what makes one."""

    name: str
    draw: Callable[[Random], Input]


def _toml_text(table: dict[str, Any]) -> str:
    return "".join(f"{as_toml(key)} = {as_toml(value)}\n" for key, value in table.items())


@functools.cache
def _shipped(kind: str, name: str) -> dict[str, Any]:
    folder = data_roots()[-1] / _TOPS.get(kind, "hardware_specs") / kind
    return tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))


@functools.cache
def _names(kind: str) -> tuple[str, ...]:
    return tuple(names(kind))


def mutated(draw: Random, base: dict[str, Any], cls: type[BaseModel]) -> dict[str, Any]:
    """The file with one or two keys changed, added or dropped, seven in eight as the class wants them."""
    table, fields = dict(base), fields_of(cls)
    for _ in range(draw.randint(1, 2)):
        present = [key for key in table if key in fields and key not in _FREE]
        key = draw.choice(present if present and draw.random() < 0.6 else [key for key in fields if key not in _FREE])
        table = _changed(draw, table, key, fields[key])
    return table


def _changed(draw: Random, table: dict[str, Any], key: str, field: Any) -> dict[str, Any]:
    how, old = draw.random(), table.get(key)
    if how < 0.06:
        return {name: value for name, value in table.items() if name != key}
    if how < 0.12:
        return {**table, key: garbage(draw)}
    if how < 0.75 and isinstance(old, dict) and old:
        inner = draw.choice(sorted(old))
        return {**table, key: {**old, inner: _near(draw, old[inner], lambda: garbage(draw))}}
    if how < 0.75 and isinstance(old, list) and old:
        at = draw.randrange(len(old))
        near = _near(draw, old[at], lambda: field_value(draw, key, field)[0])
        return {**table, key: [*old[:at], near, *old[at + 1 :]]}
    if how < 0.75:
        return {**table, key: _near(draw, old, lambda: field_value(draw, key, field))}
    return {**table, key: field_value(draw, key, field)}


def _near(draw: Random, old: Any, otherwise: Callable[[], Any]) -> Any:
    near = close_to(draw, old)
    return otherwise() if near is None else near


def jobs(draw: Random) -> Input:
    """A shipped job: its tables with mutations, parts and noise among them."""
    job = copy.deepcopy(_shipped("jobs", draw.choice(JOBS)))
    table = draw.choice(("plan", "plan", "plan", "workload", "cluster", "jitter", "model"))
    words: tuple[str, ...] = ()
    if table == "jitter":
        job["jitter"], words = table_of(draw, Jitter), ("--samples", "20")
    elif table == "model":
        job["model"] = mutated(draw, {"layers": 8}, Model)
    elif table == "cluster":
        job["cluster"]["parts"] = [table_of(draw, Part) for _ in range(draw.randint(1, 2))]
    else:
        cls = Plan if table == "plan" else type(JobFile.model_fields["workload"].default)
        job[table] = mutated(draw, job.get(table, {}), cls)
    verb = draw.choice(("run", "run", "explain")) if not words else "run"
    return Input({"job.toml": _toml_text(job)}, (verb, "job.toml", *words, "--json"))


_WEEKS: dict[str, tuple[type[BaseModel], tuple[dict[str, Any], ...]]] = {
    "reliability": (
        Reliability,
        (
            {"fleet": "meta_llama3_2024", "detection": "1 min", "restart": "10 min"},
            {"failures": [{"component": "gpu", "mtbf": "500 h"}], "spares": 2, "repair": "24 h", "elastic": 1},
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
    job = copy.deepcopy(_shipped("jobs", "gpt2_124m_2gpu"))
    for table, (cls, bases) in _WEEKS.items():
        base = copy.deepcopy(draw.choice(bases))
        job[table] = mutated(draw, base, cls) if draw.random() < 0.5 else base
    return Input({"job.toml": _toml_text(job)}, ("goodput", "job.toml", "--samples", "5", "--no-levers", "--json"))


def data_files(kind: str, cls: type[BaseModel], command: Callable[[str], tuple[str, ...]]) -> Callable[[Random], Input]:
    """A shipped data file of a kind, mutated, in the working directory, where it hides the package's own."""

    def draw_file(draw: Random) -> Input:
        name = draw.choice(_names(kind))
        path = f"{_TOPS.get(kind, 'hardware_specs')}/{kind}/{name}.toml"
        return Input({path: _toml_text(mutated(draw, _shipped(kind, name), cls))}, command(name))

    return draw_file


_CELLS = ("", "0", "-1", "1", "2", "3", "7", "1e9", "1e30", "1e-30", "1e308", "nan", "yes", "none", "0F0", "é")


def csv_files(base: list[str], command: tuple[str, ...]) -> Callable[[Random], Input]:
    """Lines of a table with one or two cells changed: to a number nearby, an extreme, a word, nothing."""

    def draw_table(draw: Random) -> Input:
        rows = [line.split(",") for line in base]
        for _ in range(draw.randint(1, 2)):
            row = draw.choice(rows[1:])
            at = draw.randrange(len(row))
            near = close_to(draw, row[at])
            row[at] = draw.choice(_CELLS) if near is None or draw.random() < 0.3 else near
        return Input({"table.csv": "\n".join(map(",".join, rows)) + "\n"}, command)

    return draw_table


def _lines(name: str, head: int, wanted: str = "") -> list[str]:
    lines = [line for line in (DATA / name).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [lines[0], *[line for line in lines[1:] if wanted in line and '"' not in line][:head]]


def settings_of_a_job(draw: Random) -> Input:
    """--set with values of the class, from the command line."""
    fields = fields_of(Plan)
    words: list[str] = []
    for key in draw.sample(sorted(fields), draw.randint(1, 3)):
        words += ["--set", f"plan.{key}={as_toml(field_value(draw, key, fields[key]))}"]
    return Input({}, ("run", draw.choice(JOBS), *words, "--json"))


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
    words = ["--ranks", str(each * nodes), "--nodes", str(nodes), "--cluster", draw.choice(_names("clusters"))]
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
    table = mutated(draw, _shipped("calibrations", "nccl_hopper_nvlink"), Profile)
    words = ("collective", draw.choice(_KINDS), "--cluster", "dgx_h100", "--ranks", "8", "--size", "1MiB", "--json")
    return Input({"hardware_specs/calibrations/nccl_hopper_nvlink.toml": _toml_text(table)}, words)


_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")


def imports(draw: Random) -> Input:
    """A file of another program with one or two numbers, words or lines changed."""
    name = draw.choice(tuple(_imported()))
    lines = _imported()[name].split("\n")
    for _ in range(draw.randint(1, 2)):
        at, how = draw.randrange(len(lines)), draw.randrange(5)
        if how < 2:
            lines[at] = _NUMBER.sub(lambda found: str(close_to(draw, found[0])), lines[at])
        elif how == 2:
            other = draw.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif how == 3:
            lines[at] = " ".join(draw.sample(words, len(words)) if (words := lines[at].split(" ")) else [])
        else:
            lines[at] = draw.choice(("", lines[at] * 2, lines[at][: len(lines[at]) // 2], text(draw, 20)))
    return Input({name: "\n".join(lines)}, ("import", name, *draw.choice(((), ("--cluster", "dgx_h100"))), "--json"))


@functools.cache
def _imported() -> dict[str, str]:
    return {
        path.name: path.read_bytes().decode("utf-8", "surrogateescape")
        for path in sorted((DATA / "imports").iterdir())
        if path.is_file()
    }


def _uses(flag: str) -> Callable[[str], tuple[str, ...]]:
    return lambda name: (
        "run",
        "--model",
        "gpt2_124m",
        "--cluster",
        "dgx_a100",
        *SMALL,
        "--set",
        f"{flag}={name}",
        "--json",
    )


def _shows(kind: str) -> Callable[[str], tuple[str, ...]]:
    return lambda name: ("show", kind, name, "--json")


def _on(cluster: str) -> Callable[[str], tuple[str, ...]]:
    return lambda name: ("run", "--model", name, "--cluster", cluster, *SMALL, "--json")


def _with(model: str) -> Callable[[str], tuple[str, ...]]:
    return lambda name: ("run", "--model", model, "--cluster", name, *SMALL, "--json")


PART = "cluster.parts"
GEMM = ("calibrate", "gemm", "table.csv", "--output", "new.toml")
TARGETS = (
    Target("jobs", jobs),
    Target("settings", settings_of_a_job),
    Target("models", data_files("models", Model, _on("dgx_h100"))),
    Target("gpus", data_files("gpus", Gpu, _shows("gpus"))),
    Target("gpus in use", data_files("gpus", Gpu, lambda name: _uses(PART)(f'[{{nodes=0,gpu="{name}"}}]'))),
    Target("links", data_files("links", Link, _shows("links"))),
    Target("nodes", data_files("nodes", Node, lambda name: _uses(PART)(f'[{{nodes=0,node="{name}"}}]'))),
    Target("clusters", data_files("clusters", ClusterSpec, _with("gpt2_124m"))),
    Target("frameworks", data_files("frameworks", Framework, _uses("plan.framework"))),
    Target("policies", data_files("recompute_policies", RecomputePolicy, _uses("plan.recompute_policy"))),
    Target("profiles", profiles),
    Target("fleets", data_files("reliability", Fleet, _shows("reliability"))),
    Target("weeks", weeks),
    Target("tables of runs", csv_files(_lines("measured_runs.csv", 3), ("validate", "table.csv", "--kind", "runs", "--json"))),
    Target("tables of products", csv_files(_lines("gemm_sample.csv", 30, "h100_80gb_sxm"), GEMM)),
    Target("orders", orders),
    Target("collectives", collectives),
    Target("imports", imports),
)  # fmt: skip
