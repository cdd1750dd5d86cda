"""The Chrome trace: what Perfetto and chrome://tracing need to draw it."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.engine import run
from simulator.program.builder import ProgramBuilder, collective_link, plain_segment, transfer_link
from simulator.program.prices import Prices
from simulator.program.program import Program, Tensor
from simulator.report.chrome_trace import export_chrome_trace


def example() -> tuple[Program, Prices]:
    """Two ranks (one stands for 16), two microbatches forth, then one collective across both."""
    build = ProgramBuilder("example", axes=(("dp", 16), ("pp", 2)))
    first = build.add_stream(build.add_rank(weight=16))
    second = build.add_stream(build.add_rank())
    out, into = build.add_stream(0, "pp>1"), build.add_stream(1, "pp<0")
    lanes = build.add_stream(0, "dp"), build.add_stream(1, "dp")
    forward = build.add_item(plain_segment("chunk forward"))
    send = build.add_item(transfer_link("activations", 0, 1, message=1024))
    norm = build.add_item(collective_link('"norm"', "all_reduce", [0, 1], message=8, group=("dp", "pp")))
    saved = build.add_effect(Tensor(name="saved", category="activations", bytes=10.0))
    done = []
    for m in range(2):
        here = build.add_row(forward, first, action=0, chunk=0, microbatch=m, start_effect=saved)
        moved = build.add_row(send, (out, into), after=[here], chunk=0, microbatch=m)
        done.append(build.add_row(forward, second, after=[moved], action=0, chunk=1, microbatch=m))
    build.add_row(norm, lanes, after=done)
    return build.build(), Prices.plain(np.array([1 / 3, 0.1, 0.2]), np.array([0.0, 0.05, 0.0]))


def exported(folder: Path, name: str = "step.json") -> dict[str, Any]:
    program, prices = example()
    path = export_chrome_trace(program, prices, run(program, prices), folder / name)
    text = gzip.decompress(path.read_bytes()).decode() if name.endswith(".gz") else path.read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def events(loaded: dict[str, Any], *phases: str) -> list[dict[str, Any]]:
    return [event for event in loaded["traceEvents"] if event["ph"] in phases]


def test_ranks_are_processes_and_streams_are_threads_with_names(tmp_path: Path) -> None:
    named = {(e["name"], e["pid"], e["tid"]): e["args"].get("name") for e in events(exported(tmp_path), "M")}
    assert "pipeline rank 0 (x16 ranks)" == named["process_name", 0, 0]
    assert ["compute", "compute", "pp>1", "pp<0", "dp", "dp"] == [
        named["thread_name", rank, stream] for stream, rank in enumerate((0, 1, 0, 1, 0, 1))
    ]


def test_a_row_is_a_slice_in_microseconds_on_each_of_its_streams(tmp_path: Path) -> None:
    slices = events(exported(tmp_path), "X")
    assert 2 + 2 + 2 * 2 + 2 == len(slices)
    forward = [e for e in slices if e["name"] == "1F0"]
    assert [(1, 1, 483333.333, 333333.334)] == [(e["pid"], e["tid"], e["ts"], e["dur"]) for e in forward]
    assert {"chunk": 1, "microbatch": 0, "step": 0, "item": "chunk forward"}.items() <= forward[0]["args"].items()
    norm = [e for e in slices if e["name"] == '"norm"']
    assert [(0, 4), (1, 5)] == [(e["pid"], e["tid"]) for e in norm]
    assert {"message_bytes": 8.0, "group": "dp+pp", "collective": "all_reduce"}.items() <= norm[0]["args"].items()


def test_slices_of_a_thread_are_in_order_and_never_overlap(tmp_path: Path) -> None:
    threads = defaultdict(list)
    for event in events(exported(tmp_path), "X"):
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert 6 == len(threads)
    for spans in threads.values():
        assert sorted(spans) == spans
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(spans))


def test_every_message_is_an_arrow_from_the_senders_slice_into_the_receivers(tmp_path: Path) -> None:
    loaded = exported(tmp_path)
    slices = {(e["args"]["row"], e["tid"]): e for e in events(loaded, "X")}
    starts, ends = ({e["id"]: e for e in events(loaded, phase)} for phase in "sf")
    assert (2, starts.keys()) == (len(starts), ends.keys())
    for row, leaves in starts.items():
        arrives = ends[row]
        assert ((0, 2), (1, 3), "e") == (
            (leaves["pid"], leaves["tid"]),
            (arrives["pid"], arrives["tid"]),
            arrives["bp"],
        )
        assert leaves["ts"] <= arrives["ts"]
        for event in (leaves, arrives):
            around = slices[row, event["tid"]]
            assert around["ts"] < event["ts"] < around["ts"] + around["dur"]


def test_memory_is_a_counter_that_changes_when_the_memory_does(tmp_path: Path) -> None:
    counters = [e for e in events(exported(tmp_path), "C") if e["pid"] == 0]
    assert [(0.0, {"activations": 10}), (333333.333, {"activations": 20})] == [(e["ts"], e["args"]) for e in counters]


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_the_file_says_what_it_shows(tmp_path: Path, name: str) -> None:
    loaded = exported(tmp_path, name)
    assert "ms" == loaded["displayTimeUnit"]
    about = loaded["otherData"]
    assert ("example", "compiled", {"dp": 16, "pp": 2}) == (about["program"], about["engine"], about["axes"])
    assert pytest.approx(1 / 3 + 1 / 3 + 0.1 + 0.05 + 1 / 3 + 0.2) == about["makespan_s"]


def test_the_same_program_gives_the_same_bytes(tmp_path: Path) -> None:
    program, prices = example()
    trace = run(program, prices)
    path = tmp_path / "step.json.gz"
    first = export_chrome_trace(program, prices, trace, path).read_bytes()
    assert first == export_chrome_trace(program, prices, trace, path).read_bytes()
