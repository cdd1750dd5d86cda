"""Workloads of SimAI and AICB: parallel sizes, collectives by group, compute times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.errors import SpecError
from simulator.importers.jobs import import_file
from tests.command import Dtsim

DATA = Path(__file__).parents[1] / "data" / "imports"
TEXT = (DATA / "simai.txt").read_text()
CSV = (DATA / "aicb.csv").read_text()


def test_sizes_and_collectives_of_a_workload() -> None:
    found = import_file(DATA / "simai.txt")
    sizes = {
        "tensor_parallel": 4,
        "expert_parallel": 2,
        "pipeline_parallel": 2,
        "sequence_parallel": True,
        "zero_stage": 1,
    }
    assert ("simai_workload", sizes, {"gpus": 32}) == (
        found.source_format,
        found.tables["plan"],
        found.tables["cluster"],
    )
    rows = {(row.kind, row.group): row for row in found.operations.rows}
    gathered = rows["all_gather", "tp"]
    assert (2, 2 * 800 / 4) == (gathered.count, gathered.bytes), "a GPU brings a quarter"
    assert (2, 1280) == (rows["all_to_all", "ep"].count, rows["all_to_all", "ep"].bytes)
    assert 1600 / 4 == rows["all_gather", "dp"].bytes
    assert pytest.approx(30e-6) == rows["compute", ""].seconds, "a time of 1 stands for nothing measured"
    assert {"tp": 4, "pp": 2, "ep": 2, "dp": 4, "dp_ep": 2} == found.operations.groups
    assert {"vpp", "ga", "pp_comm"} <= {line.text.partition(":")[0] for line in found.not_understood}


def test_a_run_with_the_sizes_of_a_workload(dtsim: Dtsim) -> None:
    path = str(DATA / "simai.txt")
    code, text, said = dtsim("run", path, "--model", "mixtral_8x7b", "--cluster", "dgx_h100", "--json")
    assert 0 == code, said
    answer = json.loads(text)
    assert 32 == answer["world_size"]
    code, _, said = dtsim("run", path, "--cluster", "dgx_h100")
    assert (2, True) == (code, "--model" in said)


def test_where_nothing_is_tensor_parallel_gathers_are_of_the_replicas(tmp_path: Path) -> None:
    path = tmp_path / "zero3.txt"
    path.write_text(
        "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 1\n1\nl -1 2000 NONE 0 9 ALLGATHER 100 1 REDUCESCATTER 50 1\n"
    )
    found = import_file(path)
    assert {("all_gather", "dp", 100), ("reduce_scatter", "dp", 50)} == {
        (row.kind, row.group, row.bytes) for row in found.operations.rows if row.group
    }
    assert any("not said" in line.text for line in found.not_understood), "so the whole buffer counts"
    assert "zero_stage" not in found.tables["plan"]


def test_fewer_rows_than_promised_are_said(tmp_path: Path) -> None:
    path = tmp_path / "cut.txt"
    path.write_text(TEXT.replace("\n5\n", "\n50\n"))
    assert "50 rows are promised, but 5 follow" in [line.text for line in import_file(path).not_understood]


def test_collectives_of_a_csv() -> None:
    found = import_file(DATA / "aicb.csv")
    assert {"tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 8} == found.tables["plan"]
    rows = {row.kind: row for row in found.operations.rows}
    assert (400, 0.0025, 8192, 2) == (
        rows["all_gather"].bytes, rows["all_gather"].seconds, rows["all_reduce"].bytes, rows["all_reduce"].count,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", TEXT.replace("ALLTOALL_EP", "ALLTONONE"), "line 7.*ALLTONONE.*ALLREDUCE"),
        ("a.txt", TEXT.replace("5000", "soon"), "line 5.*time of the forward.*soon"),
        ("a.txt", TEXT.replace("5000", "-5"), "line 5.*from 0"),
        ("a.txt", TEXT.replace("all_gpus: 32", "all_gpus: 0"), "line 1: all_gpus: expected"),
        ("a.txt", TEXT.replace("\t1\tALLGATHER\t1600\t100", ""), "line 3: expected 12 columns"),
        ("a.txt", TEXT.replace("\n5\n", "\n999999999\n"), "rows; at most"),
        ("a.csv", CSV.replace("4096", "many"), "line 4: msg_size"),
        ("a.csv", CSV.replace(",1600,", ","), "line 3: expected 12 cells"),
        ("a.csv", CSV.replace("msg_size", "size"), "line 2: no column msg_size"),
        ("a.csv", CSV.replace("tp_group,4", "tp_group,4.5"), "line 3: comm_group_size"),
        ("a.csv", "\n".join(CSV.split("\n")[:2]) + "\n", "no collective"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(SpecError, match=f"{name}.*{said}"):
        import_file(path)
