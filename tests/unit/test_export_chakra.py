"""Chakra traces: read back by Google's protobuf, and counted against the program they were made of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2

from simulator.costs.price import price
from simulator.errors import PlanError, SpecError
from simulator.importers.jobs import import_files
from simulator.importers.operations import Operation, Tally
from simulator.importers.write_chakra import write_chakra
from simulator.job import job_from_names
from simulator.lowering import lower
from simulator.program.program import COLLECTIVE, TRANSFER, Link, Program
from tests.protobuf_schema import messages

SMALL = ("cluster.gpus=8", "model.layers=4", "workload.global_batch_size=8", "workload.sequence_length=512")


def schema() -> tuple[Any, Any]:
    """GlobalMetadata and Node of the schema, as far as the traces use it (mlcommons/chakra, et_def.proto)."""
    kinds = descriptor_pb2.FieldDescriptorProto
    fields = {
        "Attribute": [("name", 1, kinds.TYPE_STRING, 1),
                      ("int32_val", 7, kinds.TYPE_INT32, 1), ("int64_val", 9, kinds.TYPE_INT64, 1),
                      ("uint64_val", 13, kinds.TYPE_UINT64, 1),
                      ("bool_val", 27, kinds.TYPE_BOOL, 1), ("string_val", 29, kinds.TYPE_STRING, 1)],
        "GlobalMetadata": [("version", 1, kinds.TYPE_STRING, 1)],
        "Node": [("id", 1, kinds.TYPE_UINT64, 1), ("name", 2, kinds.TYPE_STRING, 1), ("type", 3, kinds.TYPE_UINT32, 1),
                 ("data_deps", 5, kinds.TYPE_UINT64, 3), ("duration_micros", 7, kinds.TYPE_UINT64, 1), ("attr", 10, kinds.TYPE_MESSAGE, 3)],
    }  # fmt: skip
    metadata, node = messages("proto3", fields, "GlobalMetadata", "Node")
    return metadata, node


METADATA, NODE = schema()


def nodes_of(path: Path) -> list[Any]:
    """The nodes of a file: messages behind their lengths."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        cls = NODE if found else METADATA
        found.append(cls.FromString(data[at : at + size]))
        at += size
    assert "0.0.4" == found[0].version
    return found[1:]


def value(node: Any, name: str) -> Any:
    attr = next(a for a in node.attr if a.name == name)
    return (
        next(getattr(attr, field.name) for field, _ in attr.ListFields() if field.name != "name")
        if len(attr.ListFields()) > 1
        else 0
    )


def expected(program: Program) -> tuple[Counter[str], Counter[str]]:
    """Collectives and their bytes, per account of one GPU of every pipeline rank, straight from the program's columns."""
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    members = dict(program.axes)

    def add(kind: str, message: float, group: tuple[str, ...], times: int, n: int) -> None:
        count[kind] += times
        size[kind] += times * round(message / (n if kind == "all_gather" else 1))

    for row in range(program.size):
        item = program.items[int(program.item[row])]
        ranks = len(
            {
                int(r)
                for r in program.stream_rank[
                    program.streams[program.stream_offsets[row] : program.stream_offsets[row + 1]]
                ]
            }
        )
        if isinstance(item, Link):
            if item.kind == TRANSFER:
                add("send", item.message, (), 1, 1)
            elif item.kind == COLLECTIVE:
                n = len(item.pipeline_ranks) if "pp" in item.group else int(np.prod([members[a] for a in item.group]))
                add(item.collective, item.message, item.group, ranks, n)
            continue
        for table, times in item.pieces:
            for i in np.flatnonzero(table.kind == COLLECTIVE):
                n = int(np.prod([members[a] for a in table.group[i]]))
                kind = "send" if table.work[i] == "send_recv" else table.work[i]
                add(kind, float(table.message[i]), table.group[i], times, n)
    return count, size


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("llama3_8b", ("tp=2", "pp=2", "plan.sequence_parallel=true", "plan.zero_stage=1")),
        ("llama3_8b", ("pp=2", "plan.chunks_per_rank=2", "tp=2", "plan.recompute=full")),
        ("llama3_8b", ("plan.zero_stage=3", "plan.framework=torchtitan")),
        ("llama3_8b", ("cp=2", "tp=2", "plan.zero_stage=1")),
        ("mixtral_8x7b", ("ep=4", "plan.zero_stage=1")),
        ("gpt2_1_5b", ("pp=4", "plan.schedule=chimera", "plan.microbatch_size=1")),
    ],
)  # fmt: skip
def test_nodes_and_bytes_are_the_programs(tmp_path: Path, model: str, settings: tuple[str, ...]) -> None:
    job = job_from_names(model, "dgx_h100", (*SMALL, *settings))
    program = lower(job.workload, job.plan, job.cluster.world_size)
    made = write_chakra(program, price(program, job.cluster), tmp_path / "step")
    files = [nodes_of(tmp_path / f"step.{gpu}.et") for gpu in range(8)]
    groups = {number: members for number, members in json.loads((tmp_path / "step.groups.json").read_text()).items()}
    names = {0: "all_reduce", 2: "all_gather", 5: "broadcast", 6: "all_to_all", 7: "reduce_scatter"}
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    sent: Counter[Any] = Counter()
    for gpu, nodes in enumerate(files):
        for i, node in enumerate(nodes):
            assert i == node.id
            assert all(before < i for before in node.data_deps)
            if node.type == 7:
                kind = names[value(node, "comm_type")]
                assert gpu in groups[value(node, "pg_name")]
            elif node.type in (5, 6):
                kind = "send"
                ends = (
                    value(node, "comm_src"),
                    value(node, "comm_dst"),
                    value(node, "comm_tag"),
                    value(node, "comm_size"),
                )
                sent[ends] += 1 if node.type == 5 else -1
                assert gpu == ends[0 if node.type == 5 else 1]
            if node.type in (5, 7):
                count[kind] += 1
                size[kind] += value(node, "comm_size")
    each = 8 // program.ranks
    wanted_count, wanted_size = expected(program)
    assert {kind: n * each for kind, n in wanted_count.items()} == dict(count)
    assert {kind: n * each for kind, n in wanted_size.items()} == dict(size) == dict(made.bytes)
    assert {0} >= set(sent.values())
    assert sum(map(len, files)) == sum(made.nodes.values())
    read = import_files(made.paths)
    found = {row.kind: row for row in merged(read.operations.rows)}
    assert dict(count) == {kind: found[kind].count for kind in count}
    assert dict(size) == {kind: found[kind].bytes for kind in size}
    assert made.nodes["COMP"] == found["compute"].count
    assert (8, 8) == (read.operations.gpus, read.tables["cluster"]["gpus"])
    assert all(row.group in groups for row in read.operations.rows if row.kind in names.values())
    assert {number: len(members) for number, members in groups.items()} == read.operations.groups


def merged(rows: Sequence[Operation]) -> list[Operation]:
    """Operations of all groups together."""
    tally = Tally()
    tally.add([replace(row, group="") for row in rows])
    return list(tally.rows())


def test_kernels_take_the_time_that_the_prices_give_them(tmp_path: Path) -> None:
    job = job_from_names("llama3_8b", "dgx_h100", (*SMALL, "plan.zero_stage=1"))
    program = lower(job.workload, job.plan, job.cluster.world_size)
    prices = price(program, job.cluster)
    write_chakra(program, prices, tmp_path / "step")
    micro = sum(node.duration_micros for node in nodes_of(tmp_path / "step.0.et") if node.type == 4)
    seconds = sum(prices.occupancy[program.item[row]] for row in range(program.size) if program.kind[row] == 0)
    assert pytest.approx(micro / 10**6, rel=0.01) == seconds


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    job = job_from_names("llama3_8b", "dgx_h100", SMALL)
    program = lower(job.workload, job.plan, job.cluster.world_size)
    prices = price(program, job.cluster)
    with pytest.raises(SpecError, match="no such folder"):
        write_chakra(program, prices, tmp_path / "none" / "step")
    big = job_from_names(
        "llama3_70b", "dgx_h100", ("cluster.gpus=1024", "workload.global_batch_size=4096", "tp=8", "pp=8")
    )
    program = lower(big.workload, big.plan, big.cluster.world_size)
    with pytest.raises(PlanError, match="at most 3000000 are written"):
        write_chakra(program, price(program, big.cluster), tmp_path / "step")
