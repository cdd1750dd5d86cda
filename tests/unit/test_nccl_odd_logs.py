"""Logs as launchers, containers and people leave them: each form says the same as the plain one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.calibration.collectives.judge.machine import Machine, place_table
from simulator.calibration.collectives.read.benchmark_table import BenchmarkTable
from simulator.calibration.collectives.read.log_file import read_log
from simulator.calibration.collectives.tool import collect_logs
from simulator.errors import CalibrationError

SIZES = [2**k for k in range(13, 31, 2)]
FACTOR = 1.75


def microseconds(size: float) -> float:
    return round(20.0 + size / 400e3, 2 if size < 4e6 else 1)


def row(
    size: int,
    wrong: str = "0",
    tail: str = "",
    kind: str = "float",
    op: str = "sum",
    places: int = 2,
    factor: float = FACTOR,
) -> str:
    spent = microseconds(size)
    rate = size / spent / 1e3
    one = f"  {spent:7}  {rate:6.2f}  {rate * factor:6.2f}  {wrong:>5}"
    return f"{size:12d}  {size // 4:12d}  {kind:>8}  {op:>6}  {-1:6d}{one * places}{tail}"


def devices(count: int = 8, hosts: int = 1, host: str = "gpu-node-{}", groups: int = 1) -> list[str]:
    each = count // hosts
    return [
        f"#  Rank {i:2d} Group {i % groups:2d} Pid {4000 + i:6d} on {host.format(i // each):>10} device {i % each:2d} "
        f"[0000:{i % each:02x}:00] NVIDIA H100 80GB HBM3"
        for i in range(count)
    ]


def log(rows: list[str], ranks: list[str] | None = None, name: str = "all_reduce_perf") -> list[str]:
    return [
        "# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809",
        f"# Collective test starting: {name}",
        "# nThread 1 nGpus 1 minBytes 8192 maxBytes 536870912 step: 4(factor) warmup iters: 1 iters: 20 agg iters: 1 "
        "validation: 1 graph: 0",
        "#",
        "# Using devices",
        *(devices() if ranks is None else ranks),
        "#",
        "#                                                              out-of-place                       in-place",
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)",
        *rows,
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 300.1",
        "#",
        f"# Collective test concluded: {name}",
    ]


def read(tmp_path: Path, text: str | bytes, name: str = "job.out") -> list[BenchmarkTable]:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_log(path)


def check(table: BenchmarkTable, ranks: int = 8, nodes: int = 1, sizes: list[int] = SIZES, places: int = 2) -> None:
    assert ("all_reduce", ranks, nodes) == (table.kind, ranks and table.ranks, nodes and table.nodes)
    assert sizes == [row.message for row in table.rows]
    for one in table.rows:
        for place in range(places):
            assert one.seconds[place] == pytest.approx(microseconds(one.message) * 1e-6)
    assert not any(row.wrong for row in table.rows)


PLAIN = log([row(size) for size in SIZES])


def carried(change: Callable[[int, str], str]) -> str:
    return "\n".join(change(i, line) for i, line in enumerate(PLAIN))


FORMS: dict[str, str | bytes] = {
    "as printed": "\n".join(PLAIN),
    "bfloat16": "\n".join(log([row(size, kind="bfloat16", op="avg") for size in SIZES])),
    "fp8": "\n".join(log([row(size, kind="f8e4m3") for size in SIZES])),
    "unchecked (-c 0)": "\n".join(log([row(size, wrong="N/A") for size in SIZES])),
    "algorithm and channels behind": "\n".join(
        log([row(size, tail="    RING    SIMPLE          56") for size in SIZES])
    ),
    "timestamps behind": "\n".join(log([row(size, tail="  2026-11-21 10:00:00") for size in SIZES])),
    "mpirun -tag-output": carried(lambda i, line: f"[1,0]<stdout>:{line}"),
    "mpirun of Open MPI 5": carried(lambda i, line: f"[prterun-login-12345@1,0]<stdout>: {line}"),
    "mpirun with host and time": carried(lambda i, line: f"Sat Nov 21 10:00:{i % 60:02d} 2026[1,0]<stdout>:{line}"),
    "srun -l": carried(lambda i, line: f" 0: {line}"),
    "pdsh": carried(lambda i, line: f"gpu-node_01.cluster.local: {line}"),
    "kubectl --prefix --timestamps": carried(
        lambda i, line: f"[pod/nccl-launcher-abc/mpi] 2026-11-21T10:00:00.{i:09d}Z {line}"
    ),
    "docker's json-file": carried(lambda i, line: json.dumps({"log": line + "\n", "stream": "stdout"})),
    "quoted in a mail": carried(lambda i, line: f"> {line}"),
    "in a code block": "Results:\n\n```text\n" + "\n".join(PLAIN) + "\n```\nbye\n",
    "colours": carried(lambda i, line: f"\x1b[0;32m{line}\x1b[0m\x1b[K"),
    "colours inside": carried(lambda i, line: line.replace("float", "\x1b[1mfloat\x1b[22m")),
    "Windows line ends": "\r\n".join(PLAIN),
    "Windows UTF-16": "\r\n".join(PLAIN).encode("utf-16"),
    "byte order mark": "\ufeff" + "\n".join(PLAIN),
    "tabs": "\n".join(PLAIN).replace("  ", "\t"),
    "no-break spaces": "\n".join(PLAIN).replace("  ", " \u00a0"),
    "Markdown table": "\n".join(
        [*PLAIN[:17], *("| " + " | ".join(line.split()) + " |" for line in PLAIN[17:-4]), *PLAIN[-4:]]
    ),
    "slurm's errors between": carried(
        lambda i, line: f"{line}\nsrun: error: mpi/pmix_v4: gpu-node-0: cannot reach\nslurmstepd: task 3 of 8\n"
    ),
    "INFO between": carried(
        lambda i, line: f"{line}\ngpu-node-0:4000:4021 [0] NCCL INFO Channel 00/24 :    0   1   2   3   4   5   6   7"
    ),
    "INFO inside a row": carried(
        lambda i, line: (
            line[:52]
            + "gpu-node-0:4000:4021 [0] NCCL INFO Connected all rings\ngpu-node-0:1:2 [1] NCCL INFO x 1.5\n"
            + line[52:]
            if "float" in line
            else line
        )
    ),
    "a repeated heading": carried(lambda i, line: f"{PLAIN[9]}\n{line}" if i == 15 else line),
    "half a line at the end": "\n".join([*PLAIN[:-4], "  2147483648     536870912     float     sum      -1   53"]),
    "a bandwidth cut at the end": "\n".join(
        [*PLAIN[:-4], "  2147483648     536870912     float     sum      -1   5388.7  39"]
    ),
    "not a word after the rows": "\n".join(PLAIN[:-4]),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_says_the_same(tmp_path: Path, form: str) -> None:
    (table,) = read(tmp_path, FORMS[form])
    check(table)
    assert "NVIDIA H100 80GB HBM3" == table.gpu.strip()


def test_out_of_place_or_in_place_alone(tmp_path: Path) -> None:
    (table,) = read(tmp_path, "\n".join(log([row(size, places=1) for size in SIZES])))
    check(table, places=1)


def test_several_tests_and_cycles_in_one_file(tmp_path: Path) -> None:
    gather = log([row(size) for size in SIZES], name="all_gather_perf")
    found = read(tmp_path, "\n".join([*PLAIN, "+ ./all_gather_perf -b 8K", *gather, *PLAIN]))
    assert ["all_reduce", "all_gather", "all_reduce"] == [table.kind for table in found]
    rows = [row(size) for size in SIZES]
    cycles = log(["# Testing 1 cycle.", *rows, "# Testing 2 cycle.", *rows])
    found = read(tmp_path, "\n".join(cycles), "cycles.out")
    assert 2 == len(found)
    for table in found:
        check(table)


@pytest.mark.parametrize("host", ["ip-10-0-0-{}.ec2.internal", "node[{}]", "gpu_{}#a", "h100-{}.r1:eth0", "knoten-ä{}"])
def test_hosts_bear_any_name(tmp_path: Path, host: str) -> None:
    (table,) = read(tmp_path, "\n".join(log([row(size) for size in SIZES], devices(16, 2, host))))
    check(table, 16, 2)


def test_sixteen_thousand_ranks_are_read(tmp_path: Path) -> None:
    text = "\n".join(log([row(size) for size in SIZES], devices(16384, 2048)))
    (table,) = read(tmp_path, text)
    placed = place_table(table, Machine(inter="ib_ndr", nic=50e9))
    assert (16384, 2048) == (placed.place.ranks, placed.place.nodes)


def test_wrong_results_are_seen_in_each_form(tmp_path: Path) -> None:
    (table,) = read(tmp_path, "\n".join(log([row(size, wrong="5" if size == SIZES[-1] else "0") for size in SIZES])))
    assert [size == SIZES[-1] for size in SIZES] == [row.wrong for row in table.rows]


def test_a_split_job_is_one_communicator_among_several(tmp_path: Path) -> None:
    """NCCL_TESTS_SPLIT="MOD 8": rank i of every node talks to rank i of the other nodes; all eight groups at once."""
    (table,) = read(tmp_path, "\n".join(log([row(size, factor=1.5) for size in SIZES], devices(32, 4, groups=8))))
    assert (4, 4, 8) == (table.ranks, table.nodes, table.concurrent)
    placed = place_table(table, Machine(inter="ib_ndr", nic=50e9))
    assert (4, 4, 1, 8) == (
        placed.place.ranks,
        placed.place.nodes,
        placed.place.ranks_per_node,
        placed.place.concurrent,
    )
    assert 8 == placed.fabric.domain_size
    assert placed.place.outer_bandwidth(placed.fabric) == pytest.approx(50e9)
    assert any("NCCL_TESTS_SPLIT" in remark for remark in placed.assumed)


REPORT = [
    {
        "numCycle": 0, "name": "AllReduce", "nodes": 1, "ranks": 8, "ranksPerNode": 8, "gpusPerRank": 1, "size": size,
        "type": "float", "redop": "sum", "inPlace": place, "time": microseconds(size), "algBw": size / microseconds(size) / 1e3,
        "busBw": FACTOR * size / microseconds(size) / 1e3, "wrong": "0",
    }
    for size in SIZES
    for place in (0, 1)
]  # fmt: skip


def test_the_report_of_rccl_tests_is_read_as_json(tmp_path: Path) -> None:
    (table,) = read(tmp_path, json.dumps(REPORT), "report.json")
    check(table)


@pytest.mark.parametrize("nodes", [True, False])
def test_the_report_of_rccl_tests_is_read_as_csv_though_its_heading_lacks_a_column(tmp_path: Path, nodes: bool) -> None:
    heading = "numCycle,collective,ranks,rankspernode,gpusperrank,size,type,redop,inplace,time,algbw,busbw,#wrong"
    lines = [",".join(str(v) for k, v in one.items() if nodes or k != "nodes") for one in REPORT]
    (table,) = read(tmp_path, "\n".join([heading, *lines]), "report.csv")
    check(table, nodes=1 if nodes else 0)


def test_a_report_that_lacks_a_key_says_which(tmp_path: Path) -> None:
    broken = [{key: value for key, value in one.items() if key != "time"} for one in REPORT]
    with pytest.raises(CalibrationError, match="no key 'time'"):
        read(tmp_path, json.dumps(broken), "report.json")


def document(**changes: object) -> str:
    results = [
        {
            "size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1",
            "out_of_place": {"time": microseconds(size), "alg_bw": 1.0, "bus_bw": FACTOR, "nwrong": 0.0},
            "in_place": {"time": microseconds(size), "alg_bw": 1.0, "bus_bw": FACTOR, "nwrong": 0.0},
            "actual_iterations": 20, "experiment_name": "AllReduce",
        }
        for size in SIZES
    ]  # fmt: skip
    whole = {
        "version": 2, "start_time": "2026-11-21 10:00:00", "args": ["./all_reduce_perf", "-J", "x.json"], "env": ["A=b"],
        "nccl_version": 22809,
        "config": {
            "nthreads": 1, "ngpus": 1, "maximum_bytes": SIZES[-1], "blocking_collectives": "false",
            "devices": [
                {"rank": i, "group": 0, "pid": 1, "hostname": "a", "device": i, "device_hex": f"0000:{i:02x}:00",
                 "device_info": "NVIDIA H100"}
                for i in range(8)
            ],
        },
        "results": results, "out_of_bounds": {"count": 0, "okay": "true"}, "errors": [""],
    }  # fmt: skip
    return json.dumps(whole | changes)


def test_the_json_of_nccl_tests_2_17_keeps_its_devices_inside_the_options(tmp_path: Path) -> None:
    (table,) = read(tmp_path, document(), "x.json")
    check(table)
    assert "NVIDIA H100" == table.gpu
    assert "NCCL 2.28.9" in table.versions


def test_the_json_says_that_results_were_wrong_in_words(tmp_path: Path) -> None:
    (table,) = read(tmp_path, document(out_of_bounds={"count": 3, "okay": "false"}), "x.json")
    assert all(row.wrong for row in table.rows)
    text = document().replace('"nwrong": 0.0', '"nwrong": 7.000000', 1)
    (table,) = read(tmp_path, text, "y.json")
    assert [True, *[False] * (len(SIZES) - 1)] == [row.wrong for row in table.rows]


def test_a_json_with_times_that_are_no_numbers_keeps_the_others(tmp_path: Path) -> None:
    text = document().replace(f'"time": {microseconds(SIZES[0])}', '"time": "nan"', 1)
    (table,) = read(tmp_path, text, "x.json")
    assert len(SIZES) == len(table.rows)
    assert table.rows[0].seconds[0] != table.rows[0].seconds[0]


@pytest.mark.parametrize("name", ["gather_perf", "scatter_perf"])
def test_gather_and_scatter_are_known_by_name(tmp_path: Path, name: str) -> None:
    (table,) = read(tmp_path, "\n".join(log([row(size) for size in SIZES], name=name)))
    assert name.removesuffix("_perf") == place_table(table, Machine()).kind


@pytest.mark.parametrize("name", ["alltoallv_perf", "hypercube_perf", "bisection_perf"])
def test_tests_of_no_collective_are_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "job.out"
    path.write_text("\n".join(log([row(size) for size in SIZES], name=name)))
    collected = collect_logs([path], Machine())
    assert not collected.logs
    assert name.removesuffix("_perf") in collected.refused[0]


@pytest.mark.parametrize("mark", [",", ";", " & "])
def test_rows_exported_with_other_separators(tmp_path: Path, mark: str) -> None:
    lines = [mark.join(line.split()) for line in PLAIN[17:-4]]
    (table,) = read(tmp_path, "\n".join(lines), "allreduce.log")
    check(table, nodes=0)


def test_a_spreadsheet_with_sizes_in_words(tmp_path: Path) -> None:
    lines = ["size,time_us,busbw", *(f"{size // 1024}K,{microseconds(size)},1.0" for size in SIZES)]
    (table,) = read(tmp_path, "\n".join(lines), "all_reduce.csv")
    assert SIZES == [row.message for row in table.rows]
    assert microseconds(SIZES[0]) * 1e-6 == pytest.approx(table.rows[0].seconds[0])


DEEPSPEED = [
    "---- Performance of all_reduce on 8 devices ---------------------------------------------------------",
    "Size (Bytes)        Description                   Duration            Throughput (Gbps)             BusBW (Gbps)",
    "----------------------------------------------------------------------------------------------------",
    *(
        f"{size / 1024:.1f} KB{'':12}{size // 4}x4{'':18}{microseconds(size):.1f} us{'':12}{1.0:.2f}{'':12}1.75"
        for size in SIZES
    ),
]


def test_a_table_of_deepspeeds_benchmark_is_read(tmp_path: Path) -> None:
    (table,) = read(tmp_path, "\n".join(DEEPSPEED))
    assert ("all_reduce", 8) == (table.kind, table.ranks)
    assert SIZES == [row.message for row in table.rows]
    assert table.rows[-1].seconds[0] == pytest.approx(microseconds(SIZES[-1]) * 1e-6, rel=1e-3)


def test_a_table_of_param_is_read(tmp_path: Path) -> None:
    lines = [
        "\tCOMMS-RES-all_reduce-float32\tsize (B)\tnElementsPerRank\tnElementsPairPerRank\tLatency(us):p50\tp75\tp95\tMin\tMax"
        "\tAlgBW(GB/s)\tBusBW(GB/s)",
        *(
            f"\tCOMMS-RES-all_reduce-float32\t{size}\t{size // 4}\t{size // 4}\t{microseconds(size)}\t1\t1\t1\t1\t"
            f"{size / microseconds(size) / 1e3:.3f}\t{FACTOR * size / microseconds(size) / 1e3:.3f}"
            for size in SIZES
        ),
    ]
    (table,) = read(tmp_path, "\n".join(lines))
    check(table, nodes=0, places=1)


def test_a_log_of_another_generation_than_the_clusters_is_refused(tmp_path: Path) -> None:
    """Its times would be fitted, and written down, as those of machines that it was not made on."""
    path = tmp_path / "h100.log"
    path.write_text("\n".join(log([row(size) for size in SIZES], devices())))
    table = read_log(path)[0]
    assert "hopper" == place_table(table, Machine(cluster="dgx_h100")).fabric.architecture
    with pytest.raises(
        CalibrationError, match=r"NVIDIA H100 80GB HBM3 \(hopper\), but the GPUs of cluster 'dgx_a100' are ampere"
    ):
        place_table(table, Machine(cluster="dgx_a100"))
