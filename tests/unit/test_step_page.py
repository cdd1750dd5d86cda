"""The page of one step: its data are those of the prediction, it fits its size, it asks nothing of a network."""

from __future__ import annotations

import base64
import itertools
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.html.memory_data import memory_data
from simulator.html.packing import TICKS, pack
from simulator.html.page import document, page_html
from simulator.html.report import report_data, write_report
from simulator.html.roofline import roofline_data
from simulator.html.step_data import MOST_BARS, shown_ranks, timeline_data
from simulator.job import Job, job_from_names, load_job
from simulator.program.prices import ACCOUNTS
from simulator.program.program import COMPUTE
from simulator.report.prediction import Prediction
from simulator.simulation import simulate_job

_TYPES = {"u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "f32": np.float32, "i32": np.int32}


def unpack(packed: dict[str, Any]) -> dict[str, np.ndarray]:
    """What assets/draw.js does, by other means."""
    raw, at, out = zlib.decompress(base64.b64decode(packed["data"])), 0, {}
    for name, kind, length in packed["columns"]:
        dtype = np.dtype(_TYPES[kind])
        planes = np.frombuffer(raw, np.uint8, length * dtype.itemsize, at).reshape(dtype.itemsize, length)
        out[name] = np.ascontiguousarray(planes.T).view(dtype).ravel()
        at += length * dtype.itemsize
    assert at == len(raw)
    return out


def bars_of(data: dict[str, Any]) -> dict[str, np.ndarray]:
    """Columns of a timeline with start and end [s], rank and lane."""
    columns = unpack(data["packed"])
    offsets = [first for _, _, first in data["lanes"]] + [data["bars"]]
    start = np.concatenate([np.cumsum(columns["gap"][a:b], dtype=np.uint32) for a, b in itertools.pairwise(offsets)])
    columns["start"] = start / TICKS * data["makespan"]
    columns["end"] = (start.astype(np.int64) + columns["length"]) / TICKS * data["makespan"]
    sizes = np.diff(offsets)
    columns["rank"] = np.repeat([rank for rank, _, _ in data["lanes"]], sizes)
    columns["lane"] = np.repeat([lane for _, lane, _ in data["lanes"]], sizes)
    return columns


@pytest.fixture(scope="module")
def job() -> Job:
    settings = ["cluster.gpus=64", "plan.tensor_parallel=8", "plan.pipeline_parallel=4", "plan.data_parallel=2"]
    return job_from_names("llama2_70b", "dgx_h100", [*settings, "workload.global_batch_size=32"])


@pytest.fixture(scope="module")
def prediction(job: Job) -> Prediction:
    return simulate_job(job)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.float32, np.int32])
def test_packed_columns_come_back(dtype: Any) -> None:
    values = np.array([0, 1, 200, 77], dtype)
    assert values.tolist() == unpack(pack({"a": values, "b": values[:1]}))["a"].tolist()


def test_every_action_of_the_step_is_a_bar_at_its_time(prediction: Prediction) -> None:
    program, trace = prediction.program, prediction.trace
    bars = bars_of(timeline_data(prediction))
    for rank in range(program.ranks):
        rows = (program.rank == rank) & (program.kind == COMPUTE) & (trace.end > trace.start)
        own = (bars["rank"] == rank) & (bars["lane"] < 3)
        busy = (trace.end - trace.start)[rows].sum()
        assert np.isclose(busy, (bars["end"] - bars["start"])[own].sum(), rtol=1e-6)
        assert np.isclose(trace.end[rows].max(), bars["end"][own].max(), rtol=1e-6)
        forward = own & (bars["action"] == 0)
        assert prediction.provenance["microbatches"] == len(set(bars["microbatch"][forward].tolist()))


def test_bars_of_one_lane_do_not_go_back_in_time(prediction: Prediction) -> None:
    bars = bars_of(timeline_data(prediction))
    for rank, lane in {*zip(bars["rank"].tolist(), bars["lane"].tolist(), strict=True)}:
        own = (bars["rank"] == rank) & (bars["lane"] == lane)
        assert (np.diff(bars["start"][own]) >= 0).all()


def test_the_longest_chain_ends_the_step(prediction: Prediction) -> None:
    bars = bars_of(timeline_data(prediction))
    chain = bars["path"] % 2 == 1
    assert chain.any()
    assert np.isclose(bars["end"][chain].max(), prediction.trace.makespan, rtol=1e-6)


@pytest.mark.parametrize("settings", [[], ["plan.recompute=none", "plan.zero_stage=0"]])
def test_the_memory_drawn_peaks_at_the_peak_that_is_told(job: Job, settings: list[str]) -> None:
    named = ["cluster.gpus=64", "plan.tensor_parallel=8", "plan.pipeline_parallel=4", "plan.data_parallel=2"]
    p = simulate_job(job_from_names("llama2_70b", "dgx_h100", [*named, "workload.global_batch_size=32", *settings]))
    data = memory_data(p, list(range(p.program.ranks)))
    columns = unpack(data["packed"])
    total = sum(columns[name].astype(float) for name in data["categories"])
    for i, peak in enumerate(data["peaks"]):
        own = slice(data["offsets"][i], data["offsets"][i + 1])
        assert np.isclose(total[own].max(), peak["total"], rtol=1e-6)
        told = sum(tensor[3] for tensor in peak["tensors"]) + (peak["others"][1] if peak["others"] else 0.0)
        assert np.isclose(told, peak["total"], rtol=1e-9)


def test_no_kernel_stands_above_its_roof_and_together_they_are_the_step(prediction: Prediction, job: Job) -> None:
    data = roofline_data(prediction, job.cluster)
    for k in data["kernels"]:
        if k["flops"] and k["work"] != "attention":  # whose masked half counts, run or not
            assert k["flops"] * k["runs"] / k["seconds"] <= data["peaks"][k["dtype"]] * 1.0001
    kernels = sum(k["seconds"] for k in data["kernels"]) + (data["left_out"] or [0, 0.0])[1]
    computed = sum(prediction.breakdown[name] for name in ("forward", "backward", "recompute", "optimizer"))
    assert np.isclose(kernels, computed, rtol=0.02)


def test_the_report_says_what_run_says(prediction: Prediction, job: Job) -> None:
    data = report_data(prediction, job, "dtsim run x")
    assert data["answer"]["step"] == prediction.step_time
    assert np.isclose(sum(seconds for _, seconds in data["critical"]["ladder"]), prediction.step_time)
    assert np.isclose(sum(data["breakdown"]["mean"].values()), prediction.step_time)
    assert data["levers"]["rows"]
    assert {row["fits"] for row in data["levers"]["rows"]} <= {True, False}
    assert data["trust"]["runs"]["n"] == prediction.provenance["runs_of_this_kind"]["n"]
    assert set(data["breakdown"]["mean"]) <= set(ACCOUNTS)


def test_a_page_is_one_file_without_a_network(prediction: Prediction, job: Job, tmp_path: Path) -> None:
    text = write_report(prediction, job, tmp_path / "r.html", "dtsim run x").read_text()
    assert len(text) < 2_000_000
    assert "default-src 'none'" in text
    assert "connect-src" not in text
    assert {"http://www.w3.org/2000/svg"} == set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=\"(?!data:)", text)


def test_a_step_of_two_hundred_thousand_operations_fits_a_page() -> None:
    p = simulate_job(load_job("korthikanti_1t_full"))
    timeline = timeline_data(p)
    ranks = [entry["rank"] for entry in timeline["ranks"]]
    assert timeline["bars"] > 200_000
    assert len(json.dumps([timeline, memory_data(p, ranks)])) < 1_500_000


def test_of_a_larger_step_some_ranks_are_shown_the_fullest_among_them(
    prediction: Prediction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulator.html.step_data.MOST_BARS", prediction.program.size)
    ranks = shown_ranks(prediction)
    assert prediction.fullest in ranks
    assert len(ranks) < prediction.program.ranks
    assert MOST_BARS > prediction.program.size
    assert {entry["rank"] for entry in timeline_data(prediction)["ranks"]} == set(ranks)


def test_a_bar_of_several_segments_says_so(prediction: Prediction) -> None:
    """The last backward of a replica is cut where gradients can go."""
    program, trace = prediction.program, prediction.trace
    bars = bars_of(timeline_data(prediction))
    several = (bars["path"] & 2 > 0) & (bars["lane"] == 0)
    cut = (program.kind == COMPUTE) & (program.part > 0) & (trace.end > trace.start)
    assert bool(several.any()) == bool(cut.any())
    whole = ~several & (bars["lane"] == 0) & (bars["action"] < 4)
    alone = bars["end"][whole] - bars["start"][whole]
    assert (alone <= prediction.prices.occupancy[bars["item"][whole]] * 1.2 + 1e-6).all()


@pytest.mark.parametrize("schedule", ["chimera", "dualpipev", "seq1f1b"])
def test_labels_that_numbers_do_not_make_are_told(schedule: str) -> None:
    settings = ["cluster.gpus=32", "plan.tensor_parallel=8", "plan.pipeline_parallel=4", f"plan.schedule={schedule}"]
    extra = {"dualpipev": ["plan.chunks_per_rank=2"], "seq1f1b": ["plan.chunks_per_rank=2"]}.get(schedule, [])
    p = simulate_job(job_from_names("llama2_70b", "dgx_h100", [*settings, *extra, "workload.global_batch_size=16"]))
    data = timeline_data(p)
    columns = bars_of(data)
    assert ("way" in columns) == (schedule == "chimera")
    if data["labels"]:
        numbers = unpack(data["labels"]["packed"])["label"]
        assert set(data["labels"]["texts"]) <= {p.program.label(row) for row in range(p.program.size)}
        assert numbers.max() < len(data["labels"]["texts"])


def test_text_of_a_user_is_never_markup(prediction: Prediction, job: Job) -> None:
    evil = "</script><script>alert(1)</script>"
    assert evil not in document(evil, "", ("draw.js",), {"name": evil})
    assert evil not in page_html(evil, [])
