"""Logs of collectives as people have them: what is read, what is left out and why."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from simulator.calibration.collectives.judge.checks import judge_table, mark_slow_twins
from simulator.calibration.collectives.judge.machine import Machine, place_table
from simulator.calibration.collectives.read.log_file import read_log
from simulator.calibration.collectives.tool import collect_logs
from simulator.errors import CalibrationError

RAW = Path(__file__).parents[1] / "data" / "nccl_raw"
A100_NODE = Machine(gpu="A100-SXM4-80GB", nodes=1, kind="all_reduce")

READ = [
    # file, table, collective, ranks, nodes, sizes, largest, out of place, in place [us]
    ("srun_label_prefix.txt", 0, "all_reduce", 16, 0, 9, 2**30, 26217, 26194),
    ("mpi_prefix_ellipsis.txt", 0, "all_reduce", 16, 0, 6, 2**31, 9197.5, 9195.2),
    ("interleaved_info.txt", 0, "all_reduce", 32, 0, 8, 2**31, 36391, 36710),
    ("indented_hosts.txt", 0, "all_reduce", 8, 2, 9, 2**27, 1916.4, 1907.8),
    ("old_errors_not_checked.txt", 0, "all_reduce", 0, 0, 9, 2**33, 210583, 210461),
    ("headings_without_hash.txt", 0, "all_reduce", 16, 0, 8, 2**31, 8776.26, 8760.42),
    ("rccl.txt", 0, "all_reduce", 16, 2, 8, 2**31, 11574, 11593),
    ("reduce_with_root.txt", 0, "reduce", 8, 1, 8, 2**32, 18594, 18570),
    ("alltoall_without_operation.txt", 0, "alltoall", 8, 1, 7, 2**32, 16860, 16678),
    ("two_ranks_one_gpu.txt", 0, "all_reduce", 2, 1, 8, 2**27, 58479.5, 58055.4),
    ("two_tables_in_a_page.txt", 0, "all_reduce", 2, 1, 8, 2**31, 957746, 962086),
    ("two_tables_in_a_page.txt", 1, "all_reduce", 4, 1, 7, 2**30, 624356, 624605),
    ("two_launchers_prefix.txt", 0, "all_gather", 16, 2, 4, 2**33, 24724, 24214),
    ("last_ranks_only.txt", 0, "all_reduce", 16, 2, 5, 2**30, 22645, 23322),
    ("label_inside_rows.txt", 0, "all_reduce", 24, 0, 5, 2**24, 1334.9, 1336.5),
    ("operation_left_blank.txt", 0, "all_gather", 8, 0, 4, 2**30, 14553.37, 14552.68),
    ("rccl_algorithm_columns.txt", 0, "all_reduce", 16, 0, 3, 2**28, 1377.7, 1376.1),
    ("json_v3.json", 0, "all_reduce", 8, 1, 4, 2**28, 1120.0, 1131.2),
]


@pytest.mark.parametrize(
    ("file", "table", "kind", "ranks", "nodes", "sizes", "largest", "out", "into"), READ, ids=lambda v: str(v)
)
def test_each_form_is_read(
    file: str, table: int, kind: str, ranks: int, nodes: int, sizes: int, largest: int, out: float, into: float
) -> None:
    found = read_log(RAW / file)[table]
    assert (kind, ranks, nodes) == (found.kind, found.ranks, found.nodes)
    assert sizes == len(found.rows)
    assert largest == found.rows[-1].message
    assert (out, into) == pytest.approx([s * 1e6 for s in found.rows[-1].seconds])


def test_a_table_of_a_pytorch_benchmark_is_read() -> None:
    (found,) = read_log(RAW / "torch_bench.md")
    assert ("all_reduce", 8, "NVIDIA H200 SXM") == (found.kind, found.ranks, found.gpu)
    assert [2**15, 2**18, 2**21, 2**24, 2**27, 2**30, 2**34] == [row.message for row in found.rows]
    assert 2**34 / 275.58e9 == pytest.approx(found.rows[-1].seconds[0], rel=1e-4)
    assert any("digits" in remark for remark in found.remarks)
    assert "NCCL 2.27.7" in found.versions


def test_versions_and_forced_algorithms_are_kept() -> None:
    assert "ring" == read_log(RAW / "json_v3.json")[0].header.algorithm
    assert "NCCL 2.29.7, nccl-tests 2.18.0" == read_log(RAW / "two_ranks_one_gpu.txt")[0].versions
    assert "RCCL 2.22.3" == read_log(RAW / "rccl.txt")[0].versions


def test_a_time_stamp_in_front_is_no_number_of_the_row(tmp_path: Path) -> None:
    lines = (RAW / "headings_without_hash.txt").read_text().splitlines()
    path = tmp_path / "all_reduce.log"
    path.write_text("\n".join(f"2026-03-04T05:06:07.123 node-17: {line}" for line in lines))
    plain, stamped = read_log(RAW / "headings_without_hash.txt")[0], read_log(path)[0]
    assert [row.seconds for row in plain.rows] == [row.seconds for row in stamped.rows]


def test_columns_of_per_step_statistics_do_not_disturb(tmp_path: Path) -> None:
    heading = (
        "# size count type redop root time algbw busbw #wrong min max p99 cv time algbw busbw #wrong min max p99 cv\n"
    )
    row = "{0} {1} float sum -1 {2} {3:.2f} {4:.2f} 0 1.0 9.0 8.9 3.1 {2} {3:.2f} {4:.2f} 0 1.0 9.0 8.9 3.1\n"
    sizes = [2**p for p in range(16, 28)]
    times = [20 + size / 2e5 for size in sizes]
    path = tmp_path / "all_reduce.txt"
    path.write_text(
        heading
        + "".join(row.format(s, s // 4, t, s / t / 1e3, 1.75 * s / t / 1e3) for s, t in zip(sizes, times, strict=True))
    )
    (found,) = read_log(path)
    assert times == pytest.approx([row.seconds[0] * 1e6 for row in found.rows])
    assert times == pytest.approx([row.seconds[1] * 1e6 for row in found.rows])
    assert 8 == found.ranks


BAD = [
    (b"", "is empty"),
    (b" \n\n", "is empty"),
    (b"\x7fELF\x02\x01\x00\x00", "is a program"),
    (b"\x1f\x8b\x08\x00abc", "compressed"),
    (b"text\0text", "is no text"),
    (b"epoch 1 loss 3.2\nepoch 2 loss 3.1\n", "another tool"),
    (b'{"loss": 3.2}', "is JSON, but not of nccl-tests"),
    (b'{"nccl_version": "2.29.7", "results": [', "breaks off"),
    (b'{"results": [{"size": "many"}]}', "cannot be read"),
    (b"# nThread 1 nGpus 8 minBytes 8 maxBytes 1024 step: 2(factor)\n# Using devices\n", "not one row"),
    (b"size_bytes,time_us\n8,fast\n", "line 2"),
    (b"size_bytes,time_us\n", "without rows"),
    (b"  8  2  float  sum  -1  45.72  0.00  0.00  0  29.78  0.00  0.00  0\n", "at least 3"),
]


@pytest.mark.parametrize(("content", "why"), BAD, ids=[why for _, why in BAD])
def test_a_bad_log_gets_one_message_that_names_it(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(content)
    with pytest.raises(CalibrationError, match=why) as caught:
        read_log(path)
    assert "job.log" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_log_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="No such file"):
        read_log(tmp_path / "none.log")
    with pytest.raises(CalibrationError, match="is a directory"):
        read_log(tmp_path)


def table(tmp_path: Path, rows: list[tuple[float, float]], wrong: str = "0", name: str = "all_reduce.txt") -> Path:
    """Write a log of 8 ranks: (bytes, us) out of place."""
    path = tmp_path / name
    lines = ["# nThread 1 nGpus 1 minBytes 8 maxBytes 1 step: 2(factor)", "# Collective test starting: all_reduce_perf"]
    lines += [f"# Rank {i} Group 0 Pid {i} on host device {i} [0x1{i}] NVIDIA A100-SXM4-80GB" for i in range(8)]
    lines += [
        f"{s:.0f} {s / 4:.0f} float sum -1 {t:.2f} {s / t / 1e3:.2f} {1.75 * s / t / 1e3:.2f} {wrong}" for s, t in rows
    ]
    path.write_text("\n".join(lines))
    return path


GOOD = [(2.0**p, 30 + 2.0**p / 1.3e5) for p in range(10, 31)]


def judged(path: Path) -> tuple[str, str, int]:
    """Return (remarks, complaint, points) of a log of one A100 node."""
    found = read_log(path)[0]
    one = judge_table(found, place_table(found, A100_NODE))
    return "; ".join(one.remarks), one.complaint, len(one.log.message)


def test_a_healthy_log_is_used_whole(tmp_path: Path) -> None:
    remarks, complaint, points = judged(table(tmp_path, GOOD))
    assert ("", len(GOOD)) == (complaint, points)
    assert "left out" not in remarks


def test_a_cold_first_row_and_a_spike_are_left_out_by_name(tmp_path: Path) -> None:
    rows = [(GOOD[0][0], 500.0), *GOOD[1:10], (GOOD[10][0], 900.0), *GOOD[11:]]
    remarks, complaint, points = judged(table(tmp_path, rows))
    assert "cold first rows: 1 KiB" in remarks
    assert "slower than a larger message: 1 MiB" in remarks
    assert ("", len(GOOD) - 2) == (complaint, points)


def test_times_faster_than_the_wires_are_not_believed(tmp_path: Path) -> None:
    _, complaint, _ = judged(table(tmp_path, [(s, t / 20 if s > 2**22 else t) for s, t in GOOD]))
    assert "faster than the wires" in complaint


def test_an_unwell_cluster_wrong_results_and_a_shared_gpu_are_named(tmp_path: Path) -> None:
    _, slow, _ = judged(table(tmp_path, [(s, 8 * t) for s, t in GOOD]))
    assert "times slower than predicted" in slow
    _, wrong, _ = judged(table(tmp_path, GOOD, wrong="7"))
    assert "wrong results" in wrong
    _, shared, _ = judged(RAW / "two_ranks_one_gpu.txt")
    assert "share one GPU" in shared


def test_the_slow_one_of_two_twins_is_named(tmp_path: Path) -> None:
    paths = [
        table(tmp_path, GOOD, name="all_reduce_a.txt"),
        table(tmp_path, [(s, 2.3 * t) for s, t in GOOD], name="all_reduce_b.txt"),
    ]
    tables = [read_log(path)[0] for path in paths]
    marked = mark_slow_twins([judge_table(t, place_table(t, A100_NODE)) for t in tables])
    assert ["", True] == [marked[0].complaint, "all_reduce_a" in marked[1].complaint]


def test_a_truncated_log_says_so_and_its_rows_are_used(tmp_path: Path) -> None:
    path = table(tmp_path, GOOD[:8])
    path.write_text(path.read_text().replace("maxBytes 1 ", "maxBytes 1073741824 ") + "\n  262144   65")
    found = read_log(path)[0]
    assert 8 == len(found.rows)
    assert any("truncated" in remark for remark in found.remarks)
    assert any("cut" in remark for remark in found.remarks)


def test_good_logs_of_a_call_survive_bad_ones(tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_text("")
    collected = collect_logs([tmp_path / "empty.log", RAW / "reduce_with_root.txt", tmp_path / "none"], Machine())
    assert ["reduce_with_root"] == [log.name for log in collected.logs]
    assert 2 == len(collected.refused)
    assert any("assumed" in remark for remark in collected.remarks)


@pytest.mark.parametrize(
    ("file", "machine", "option"),
    [
        ("srun_label_prefix.txt", Machine(), "--nodes"),
        ("old_errors_not_checked.txt", Machine(), "--ranks"),
        ("rccl.txt", Machine(), "--nic"),
        ("headings_without_hash.txt", Machine(nodes=2), "--gpu"),
    ],
)
def test_what_a_log_does_not_tell_is_asked_for_by_its_option(file: str, machine: Machine, option: str) -> None:
    found = read_log(RAW / file)[0]
    with pytest.raises(CalibrationError, match=option):
        place_table(found, machine)


def test_a_cluster_places_a_log_that_names_no_machine() -> None:
    found = read_log(RAW / "headings_without_hash.txt")[0]
    placed = place_table(found, Machine(cluster="dgx_h100"))
    assert (16, 2, "infiniband") == (placed.place.ranks, placed.place.nodes, placed.fabric.network)


def test_in_place_times_are_points_of_their_own() -> None:
    found = read_log(RAW / "reduce_with_root.txt")[0]
    log = judge_table(found, place_table(found, Machine())).log
    assert 2 * len(found.rows) == len(log.message)
    assert np.isfinite(log.seconds).all()
    assert not any(math.isnan(size) for size in log.message)
