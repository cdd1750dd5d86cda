"""AICB's workloads and results for a cluster: a CSV with a row per collective, and its time where it was run.

    comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count
    CommType.all_gather,CommGroup.tp_group,8,20971520,forward.MegatronColumnLinear,None,None,,None,None,None,1

Sizes are whole buffers, of an all_gather too; here they become what a GPU brings.  Times are milliseconds.

Source: aliyun/aicb, utils/utils.py (CommType, CommGroup) and log_analyzer/log.py.
"""

from __future__ import annotations

import csv
import re

from simulator.errors import SpecError
from simulator.hardware.cluster import MAX_WORLD_SIZE
from simulator.importers.base import Importer
from simulator.importers.document import Document
from simulator.importers.imported import Findings, brief
from simulator.importers.operations import Operations, Tally
from simulator.units import parse

__all__ = ["AicbCsv"]

_MILLISECOND = parse("1 ms", "s")
_HEADER = re.compile(r"(\[[^\n]{0,200}\n)?comm_type,comm_group,")
_KINDS = {
    "all_reduce": "all_reduce", "isend": "send", "irecv": "recv", "broadcast": "broadcast", "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather", "reduce_scatter": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "reduce": "reduce", "barrier": "barrier", "all_to_all": "all_to_all", "computation": "compute",
}  # fmt: skip
_NEEDED = ("comm_type", "comm_group", "msg_size")
_FIELDS = {
    "tp": "plan.tensor_parallel", "pp": "plan.pipeline_parallel", "dp": "plan.data_parallel", "ep": "plan.expert_parallel",
    "all": "cluster.gpus", "all_nodes": "cluster.gpus",
}  # fmt: skip
_MOST_ROWS = 500_000


class AicbCsv(Importer):
    """Collectives of a run, as AICB writes them."""

    name = "aicb_csv"
    title = "AICB workload or result (CSV)"

    def recognises(self, document: Document) -> int:
        """Look for the names of the first columns."""
        return 3 if _HEADER.match(document.head.replace("\r", "")) else 0

    def read(self, document: Document) -> Findings:
        """Return collectives by kind and group, and the sizes of the groups.

        Raises:
            SpecError: a row has other columns than the header, or no numbers where they belong.
        """
        lines = document.text.splitlines()
        first = next((i for i, line in enumerate(lines[:2]) if line.startswith("comm_type,")), None)
        if first is None:
            raise SpecError(f"{document.place}: expected a header comm_type,comm_group,... in line 1 or 2")
        header = lines[first].split(",")
        if missing := [name for name in _NEEDED if name not in header]:
            raise SpecError(f"{document.line_of(first + 1)}: no column {', '.join(missing)}")
        if len(lines) > _MOST_ROWS:
            raise SpecError(f"{document.place}: has more than {_MOST_ROWS:,} lines")
        findings, tally = Findings(self.name), Tally()
        sizes: dict[str, int] = {}
        for number, line in enumerate(lines[first + 1 :], first + 2):
            if line.strip():
                row = dict(zip(header, _cells(line, len(header), document.line_of(number)), strict=True))
                _take(row, document.line_of(number), findings, tally, sizes)
        if not (rows := tally.rows()):
            raise SpecError(f"{document.place}: no collective in it")
        for group, name in _FIELDS.items():
            if group in sizes and (sizes[group] > 1 or group != "ep"):
                findings.put(name, sizes[group], f"{document.place}: comm_group_size of {group}")
        findings.operations = Operations(span="the file", rows=rows, groups=sizes)
        return findings


def _cells(line: str, columns: int, place: str) -> list[str]:
    try:
        cells = next(csv.reader([line]))
    except csv.Error as error:
        raise SpecError(f"{place}: is no CSV ({error})") from None
    if len(cells) != columns:
        raise SpecError(f"{place}: expected {columns} cells as in the header, got {len(cells)}")
    return cells


def _take(row: dict[str, str], place: str, findings: Findings, tally: Tally, sizes: dict[str, int]) -> None:
    """Add a row."""
    word = row["comm_type"].removeprefix("CommType.")
    if word == "epoch_end":
        findings.ignore(place, "epoch_end")
        return
    if word not in _KINDS:
        findings.skip(place, f"{row['comm_type']}: no collective that is known")
        return
    kind = _KINDS[word]
    group = brief(row["comm_group"].removeprefix("CommGroup.").removesuffix("_group")) if kind != "compute" else ""
    moved = _number(row["msg_size"], f"{place}: msg_size") if kind != "compute" else 0.0
    size = _number(row.get("comm_group_size", "None"), f"{place}: comm_group_size")
    if size > MAX_WORLD_SIZE or size != int(size):
        raise SpecError(f"{place}: comm_group_size: expected whole GPUs up to {MAX_WORLD_SIZE:,}, got {size:g}")
    if size and group:
        sizes[group] = int(size)
    if kind == "all_gather" and size:
        moved /= size
    seconds = _number(row.get("_elapsed_time", "None"), f"{place}: _elapsed_time") * _MILLISECOND
    count = _number(row.get("count", "1"), f"{place}: count") or 1.0
    stage = brief(row.get("stage") or word)
    tally.count(kind, stage, group=group, count=count, bytes=count * moved, seconds=seconds)


def _number(text: str, place: str) -> float:
    """A number from 0; nothing and None are 0."""
    if text.strip() in ("", "None", "nan", "-1"):
        return 0.0
    if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?(e[-+]?[0-9]{1,2})?", text.strip()):
        raise SpecError(f"{place}: expected a number from 0, got {brief(text)}")
    return float(text)
