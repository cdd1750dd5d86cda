"""The columns of a table of measured runs: those that are read are listed and documented, and others are told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.accuracy.memory import memory_outcomes
from simulator.accuracy.nccl import nccl_outcomes
from simulator.accuracy.runs import run_outcomes
from simulator.errors import SpecError
from simulator.importers.table.columns import COLUMNS
from simulator.importers.table.rows import read_rows
from tests.command import Dtsim
from tests.rows import placed

ROOT = Path(__file__).parents[2]
TABLES = {
    "runs": ("workloads/published/measured_runs.csv", "tests/data/finetuning_runs.csv", "tests/data/blind9_runs.csv"),
    "memory": ("tests/data/held_out_memory.csv", "tests/data/blind9_memory.csv"),
}
READERS = {"runs": run_outcomes, "memory": memory_outcomes}


class Watched(dict[str, str]):
    """A row that knows which of its columns were asked for."""

    asked: set[str]

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> str:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


def asked_for(kind: str) -> Iterator[str]:
    for place in TABLES[kind]:
        every = read_rows(ROOT / place)
        for row in (every[0] | {"gbs": ""}, *every[:: max(1, len(every) // 12)]):
            watched = Watched(row)
            watched.asked = set()
            list(READERS[kind]([watched], True))
            yield from watched.asked


def test_the_list_has_the_columns_that_are_asked_for() -> None:
    assert {*asked_for("runs"), *asked_for("memory")} == set(COLUMNS["memory"])
    assert set(COLUMNS["runs"]) <= set(COLUMNS["memory"])


def test_every_column_is_documented() -> None:
    page = (ROOT / "docs/data_files.md").read_text(encoding="utf-8")
    start = page.index("## Tables of measured runs")
    told = set(re.findall(r"`(\w+)`", page[start : page.index("\n## ", start + 1)]))
    assert set() == set(COLUMNS["memory"]) - told


def test_a_misspelt_column_is_told(tmp_path: Path, dtsim: Dtsim) -> None:
    """It was passed over without a word, and the row predicted as another run."""
    table = tmp_path / "runs.csv"
    head = "model,gpu,n_gpus,tp,pp,global_batch,gbs,seq_len,step_time_s,zero_stag,remark,empty"
    table.write_text(f"{head}\nllama3_8b,H100 SXM 80GB,8,1,1,8,8,8192,1.0,3,ours,\n")
    code, out, _ = dtsim("validate", str(table))
    assert 0 == code
    assert re.search(r"zero_stag +zero_stage\?", out)
    _, out, _ = dtsim("validate", str(table), "--json")
    told = {one["column"]: one["meant"] for one in json.loads(out)["not_read"]}
    assert {"zero_stag": "zero_stage", "global_batch": None, "remark": None} == told


def test_the_table_of_the_page_is_read_whole(tmp_path: Path, dtsim: Dtsim) -> None:
    page = (ROOT / "docs/data_files.md").read_text(encoding="utf-8")
    shown = page[page.index("## Tables of measured runs") :].split("```text\n")[1].split("```")[0]
    table = tmp_path / "runs.csv"
    table.write_text(shown)
    _, out, _ = dtsim("validate", str(table), "--json")
    found = json.loads(out)
    assert [] == found["not_read"]
    assert found["rows"][0]["predicted"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model,tp,tp,n_gpus,step_time_s\nllama3_8b,1,2,8,1\n", "more than one is called 'tp'"),
        ("model,tp , tp,n_gpus,step_time_s\nllama3_8b,1,2,8,1\n", "more than one is called 'tp'"),
    ],
)
def test_columns_of_one_name_are_refused(tmp_path: Path, text: str, said: str) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(text)
    with pytest.raises(SpecError, match=said):
        read_rows(table)


def test_columns_without_a_name_are_passed_over(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(",n_gpus,,step_time_s\n1,8,x,1\n")
    assert read_rows(table)[0]["n_gpus"] == "8"


def test_an_index_of_logs_that_names_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="in a column log_id, but a row of this names none"):
        next(nccl_outcomes([{"collective": "all_reduce"}], tmp_path / "index.csv"))


def test_flash_attention_3_is_that_before_it_on_a_gpu_without_its_kernels() -> None:
    hopper = placed(attn_kernel="FlashAttention v3", gpu="H100-80GB-SXM", gpu_peak_bf16_tflops="989")
    assert "flash3" == hopper.fields["attention"]
    ampere = placed(attn_kernel="FlashAttention v3")
    assert "flash2" == ampere.fields["attention"]
    assert any("'FlashAttention v3' is flash2 on a100_80gb_sxm" in said for said in ampere.assumed), ampere.assumed


@pytest.mark.parametrize("mark", [";", "\t"])
def test_columns_may_be_separated_as_spreadsheets_do(tmp_path: Path, mark: str) -> None:
    """Told by a header without a comma; one with commas is read as ever, whatever its words hold."""
    plain, other = tmp_path / "plain.csv", tmp_path / "other.csv"
    plain.write_text("run_id,model,n_gpus,notes\na,llama3_8b,8,x;y\n")
    other.write_text(plain.read_text().replace("x;y", "z").replace(",", mark))
    assert ["x;y", "z"] == [read_rows(path)[0]["notes"] for path in (plain, other)]
    assert ["8", "8"] == [read_rows(path)[0]["n_gpus"] for path in (plain, other)]
