"""What is fuzzed: per kind of input a valid file with one or two mutations, and the command that reads it."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from simulator.hardware.cluster import ClusterSpec, Node
from simulator.hardware.gpu import Gpu
from simulator.hardware.jitter import Jitter
from simulator.hardware.link import Link
from simulator.hardware.parts import Part
from simulator.job import JobFile
from simulator.plan.framework import Framework
from simulator.plan.plan import Plan
from simulator.specs import data_roots, names
from simulator.workload.model import Model
from tests.fuzz.values import GARBAGE, field_values, fields_of, table_of

__all__ = ["TARGETS", "Input", "Target", "toml_text"]

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
JOBS = ("gpt2_124m_1gpu", "gpt2_124m_2gpu", "llama_7b_4x4090", "llama3_8b_fsdp_8xh100", "gpt3_175b")
SMALL = ["--set", "workload.global_batch_size=32", "--set", "cluster.gpus=8"]


@dataclass(frozen=True, slots=True)
class Input:
    """Files to write (path to text), the command, and whether the first check lets the input through (None: not known)."""

    files: dict[str, str]
    arguments: tuple[str, ...]
    deep: bool | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of input."""

    name: str
    inputs: st.SearchStrategy[Input]


def toml_text(table: dict[str, Any]) -> str:
    """A table as TOML; every value on one line."""
    return "".join(f"{json.dumps(key)} = {_value(value)}\n" for key, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return json.dumps(value).replace("\\u0000", "\\u0001")
    return str(value)


def read(kind: str, name: str) -> dict[str, Any]:
    """A shipped data file."""
    top = "workloads" if kind in ("models", "jobs") else "hardware_specs"
    return tomllib.loads((data_roots()[-1] / top / kind / f"{name}.toml").read_text(encoding="utf-8"))


@st.composite
def mutated(draw: Any, base: dict[str, Any], cls: type[BaseModel]) -> dict[str, Any]:
    """The file with one or two keys changed, added or dropped: four in five as the class wants them."""
    table, fields = dict(base), fields_of(cls)
    for _ in range(draw(st.integers(1, 2))):
        key = draw(st.sampled_from(sorted(set(fields) - {"name", "aliases", "sources", "notes"})))
        how = draw(st.integers(0, 9))
        if how == 0:
            table.pop(key, None)
        elif how == 1:
            table[key] = draw(GARBAGE)
        elif isinstance(table.get(key), dict) and table[key] and how < 6:
            inner = draw(st.sampled_from(sorted(table[key])))
            table[key] = {**table[key], inner: draw(field_values(inner, fields[key]) | st.just(table[key][inner]))}
        else:
            table[key] = draw(field_values(key, fields[key]))
    return table


def accepts(cls: type[BaseModel], table: dict[str, Any]) -> bool:
    """Whether the class takes a table as from a file."""
    try:
        cls.model_validate(table, context={"from_file": True})
    except (ValidationError, ValueError, TypeError):
        return False
    return True


@st.composite
def jobs(draw: Any) -> Input:
    """A shipped job: its tables with mutations, parts and noise among them."""
    job = read("jobs", draw(st.sampled_from(JOBS)))
    table = draw(st.sampled_from(["plan", "plan", "plan", "workload", "cluster", "jitter", "model"]))
    if table == "jitter":
        job["jitter"] = draw(table_of(Jitter))
    elif table == "model":
        job["model"] = draw(mutated({"layers": 8}, Model))
    elif table == "cluster":
        job["cluster"] = {**job["cluster"], "parts": draw(st.lists(table_of(Part), min_size=1, max_size=2))}
    else:
        cls = Plan if table == "plan" else type(JobFile.model_fields["workload"].default)
        job[table] = draw(mutated(job.get(table, {}), cls))
    verb = draw(st.sampled_from(["run", "run", "explain"]))
    return Input({"job.toml": toml_text(job)}, (verb, "job.toml", "--json"), accepts(JobFile, job))


def data_files(kind: str, cls: type[BaseModel], command: Callable[[str], tuple[str, ...]]) -> st.SearchStrategy[Input]:
    """A shipped data file of a kind, mutated, in the working directory, where it hides the package's own."""
    top = "workloads" if kind == "models" else "hardware_specs"

    @st.composite
    def inputs(draw: Any) -> Input:
        name = draw(st.sampled_from(names(kind)))
        table = draw(mutated(read(kind, name), cls))
        return Input({f"{top}/{kind}/{name}.toml": toml_text(table)}, command(name), accepts(cls, table))

    return inputs()


@st.composite
def csv_files(draw: Any, base: list[str], command: tuple[str, ...]) -> Input:
    """Lines of a table with one or two cells changed: to a number nearby, an extreme, a word, nothing."""
    rows = [line.split(",") for line in base]
    for _ in range(draw(st.integers(1, 2))):
        row = draw(st.integers(1 if len(rows) > 1 else 0, len(rows) - 1))
        cell = draw(st.integers(0, len(rows[row]) - 1))
        rows[row][cell] = draw(
            st.sampled_from(
                ["", "0", "-1", "1", "2", "3", "7", "1e9", "1e30", "1e-30", "1e308", "nan", "yes", "none", "0F0", "é"]
            )
            | st.integers(0, 10**6).map(str)
            | st.floats(0, 1e6).map(str)
        )
    return Input({"table.csv": "\n".join(map(",".join, rows)) + "\n"}, command)


def _lines(name: str, head: int, wanted: str = "") -> list[str]:
    lines = [line for line in (DATA / name).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [lines[0], *[line for line in lines[1:] if wanted in line and '"' not in line][:head]]


@st.composite
def settings_of_a_job(draw: Any) -> Input:
    """--set with values of the class, from the command line."""
    fields = {key: field for key, field in fields_of(Plan).items()}
    words: list[str] = []
    for key in draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=3, unique=True)):
        words += ["--set", f"plan.{key}={_value(draw(field_values(key, fields[key])))}"]
    return Input({}, ("run", draw(st.sampled_from(JOBS)), *words, "--json"))


@st.composite
def orders(draw: Any) -> Input:
    """A pipeline order with cells moved, doubled, dropped or changed."""
    from simulator.schedules.base import Shape

    schedule = draw(st.sampled_from(["one_f_one_b", "gpipe", "zb_h1"]))
    from simulator.schedules import SCHEDULES

    shape, member = Shape(3, 4), SCHEDULES.get(schedule)
    rows = [line.split(",") for line in member.order(shape, member.placement(shape)).to_text().splitlines()]
    for _ in range(draw(st.integers(1, 2))):
        row = draw(st.sampled_from(rows))
        at, other = draw(st.integers(0, len(row) - 1)), draw(st.integers(0, len(row) - 1))
        row[at] = draw(st.sampled_from([row[other], row[at], "", "0F0", "2B9", "1W1", "x", "(0F1;0B0)"]))
    return Input({"order.csv": "\n".join(map(",".join, rows)) + "\n"}, ("schedule", "order.csv", "--json"))


@st.composite
def collectives(draw: Any) -> Input:
    """Any collective on any cluster, in shapes that mostly can be."""
    each, nodes = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 3, 16, 512]))
    words = ["--ranks", str(each * nodes), "--nodes", str(nodes), "--cluster", draw(st.sampled_from(names("clusters")))]
    words += ["--size", draw(st.sampled_from(["8B", "1KiB", "1MiB", "1GiB", "0.5B", "1e12 B"]))]
    kind = draw(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]))
    algorithm = draw(st.sampled_from(["auto", "auto", "ring", "tree", "nvls", "pat", "collnet_direct", "torus"]))
    return Input({}, ("collective", kind, *words, "--algorithm", algorithm, "--json"))


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


PART = "cluster.parts"
GEMM = ("calibrate", "gemm", "table.csv", "--output", "new.toml")
TARGETS = (
    Target("jobs", jobs()),
    Target("settings", settings_of_a_job()),
    Target("models", data_files("models", Model, lambda name: ("run", "--model", name, "--cluster", "dgx_h100", *SMALL, "--json"))),
    Target("gpus", data_files("gpus", Gpu, lambda name: ("show", "gpus", name, "--json"))),
    Target("gpus in use", data_files("gpus", Gpu, lambda name: _uses(PART)(f'[{{nodes=0,gpu="{name}"}}]'))),
    Target("links", data_files("links", Link, lambda name: ("show", "links", name, "--json"))),
    Target("nodes", data_files("nodes", Node, lambda name: _uses(PART)(f'[{{nodes=0,node="{name}"}}]'))),
    Target("clusters", data_files("clusters", ClusterSpec, lambda name: ("run", "--model", "gpt2_124m", "--cluster", name, *SMALL))),
    Target("frameworks", data_files("frameworks", Framework, _uses("plan.framework"))),
    Target("tables of runs", csv_files(_lines("measured_runs.csv", 3), ("validate", "table.csv", "--kind", "runs", "--json"))),
    Target("tables of products", csv_files(_lines("gemm_sample.csv", 30, "h100_80gb_sxm"), GEMM)),
    Target("orders", orders()),
    Target("collectives", collectives()),
)  # fmt: skip
