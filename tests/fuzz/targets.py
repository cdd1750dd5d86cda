"""What is fuzzed: per kind of input a valid file with one or two mutations, and the command that reads it."""

from __future__ import annotations

from collections.abc import Callable

from simulator.hardware.cluster import ClusterSpec, Node
from simulator.hardware.gpu import Gpu
from simulator.hardware.link import Link
from simulator.hardware.reliability import Fleet
from simulator.plan.framework import Framework
from simulator.plan.recompute_policy import RecomputePolicy
from tests.fuzz.foreign_files import (
    imports,
    logs_of_collectives,
    measured_kernels,
    model_configs,
    tables,
    training_logs,
)
from tests.fuzz.inputs import Input, Target, lines_of
from tests.fuzz.own_files import (
    SMALL,
    collectives,
    data_files,
    jobs,
    layouts,
    models,
    orders,
    profiles,
    programs,
    searches,
    settings_of_a_job,
    studies,
    weeks,
)
from tests.fuzz.requests import requests

__all__ = ["TARGETS", "Input", "Target"]


def _uses(flag: str) -> Callable[[str], tuple[str, ...]]:
    model = ("run", "--model", "gpt2_124m", "--cluster", "dgx_a100", *SMALL)
    return lambda name: (*model, "--set", f"{flag}={name}", "--json")


def _shows(kind: str) -> Callable[[str], tuple[str, ...]]:
    return lambda name: ("show", kind, name, "--json")


def _with(model: str) -> Callable[[str], tuple[str, ...]]:
    return lambda name: ("run", "--model", model, "--cluster", name, *SMALL, "--json")


PART = "cluster.parts"
GEMM = ("calibrate", "gemm", "table.csv", "--output", "new.toml")
CHECKED = ("runs", "memory", "gemm", "schedules")
TARGETS = (
    Target("jobs", jobs),
    Target("settings", settings_of_a_job),
    Target("models", models),
    Target("model configs", model_configs),
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
    Target("layouts", layouts),
    Target("studies", studies),
    Target("searches", searches),
    Target("programs", programs),
    Target("tables of runs", tables(
        (lines_of("measured_runs.csv", 3), ("validate", "table.csv", "--kind", "runs", "--json")),
        (lines_of("held_out_memory.csv", 2), ("validate", "table.csv", "--kind", "memory", "--json")),
        (lines_of("schedule_goldens.csv", 5), ("validate", "table.csv", "--kind", "schedules", "--json")),
    )),
    Target("tables of products", tables((lines_of("gemm_sample.csv", 30, "h100_80gb_sxm"), GEMM))),
    Target("tables of kernels", tables(
        *map(measured_kernels, ("attention", "memory", "overlap")),
        (lines_of("held_out_kernels.csv", 10), ("validate", "table.csv", "--kind", "gemm", "--json")),
    )),
    Target("logs of collectives", logs_of_collectives),
    Target("training logs", training_logs),
    Target("orders", orders),
    Target("collectives", collectives),
    Target("imports", imports),
    Target("requests", requests),
)  # fmt: skip
