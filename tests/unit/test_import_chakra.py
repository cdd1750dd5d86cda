"""Chakra execution traces: both binary schemas, PyTorch's JSON and the feeder's."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from simulator.errors import SpecError
from simulator.importers import chakra_wire as wire
from simulator.importers.jobs import import_file, import_files
from tests.command import Dtsim
from tests.protobuf_schema import messages

DATA = Path(__file__).parents[1] / "data" / "imports"


def by_kind(path: Path) -> dict[str, tuple[float, float, float]]:
    """Kind -> count, bytes, microseconds."""
    return {row.kind: (row.count, row.bytes, round(row.seconds * 1e6)) for row in import_file(path).operations.rows}


def trace(*nodes: bytes) -> bytes:
    return wire.metadata() + b"".join(wire.framed(node) for node in nodes)


def test_a_trace_of_a_gpu() -> None:
    found = import_files([DATA / "step.0.et", DATA / "step.groups.json"])
    assert "chakra + chakra_groups" == found.source_format
    assert {"compute": (1, 1e6, 850), "all_gather": (1, 65536, 0), "all_reduce": (1, 2**20, 40), "send": (1, 4096, 0),
            "host": (1, 0, 12)} == by_kind(DATA / "step.0.et")  # fmt: skip
    assert ({"1": 4, "2": 2}, 5) == (found.operations.groups, found.tables["cluster"]["gpus"])
    assert "step.0.et, node 6" in next(line.place for line in found.not_understood if "comm_type 77" in line.text)
    assert any("dependencies" in line.text for line in found.not_understood)


def old_schema() -> Any:
    """Node of the schema before October 2023 (mlcommons/chakra, et_def.proto at 0.0.3)."""
    kinds = descriptor_pb2.FieldDescriptorProto
    fields = {
        "Attribute": [("name", 1, kinds.TYPE_STRING, 2), ("type", 2, kinds.TYPE_UINT32, 2), ("b", 4, kinds.TYPE_BOOL, 1),
                      ("f", 5, kinds.TYPE_FLOAT, 1), ("u", 6, kinds.TYPE_UINT64, 1), ("i", 7, kinds.TYPE_INT64, 1),
                      ("s", 8, kinds.TYPE_STRING, 1), ("ints", 12, kinds.TYPE_INT64, 3)],
        "Node": [("id", 1, kinds.TYPE_UINT64, 2), ("name", 2, kinds.TYPE_STRING, 2), ("type", 3, kinds.TYPE_UINT32, 2),
                 ("parent", 4, kinds.TYPE_UINT64, 3), ("inputs", 5, kinds.TYPE_STRING, 1),
                 ("output_types", 10, kinds.TYPE_STRING, 1), ("attribute", 11, kinds.TYPE_MESSAGE, 3)],
    }  # fmt: skip
    return messages("proto2", fields, "Node")[0]


def test_the_schema_before_october_2023(tmp_path: Path) -> None:
    make = old_schema()
    size = [{"name": "comm_size", "type": 2, "u": 4096}, {"name": "dims", "type": 8, "ints": [1, -1]}]
    nodes = [
        make(
            id=1, name="k", type=4, attribute=[{"name": "runtime", "type": 3, "i": 70}], inputs="[1]", output_types="x"
        ),
        make(id=2, name="c", type=7, parent=[1], attribute=[{"name": "comm_type", "type": 2, "u": 3}, *size]),
        make(id=3, name="d", type=7, parent=[1], attribute=[{"name": "comm_type", "type": 2, "u": 1}, *size]),
        make(id=4, name="h", type=4, attribute=[{"name": "is_cpu_op", "type": 0, "b": True}]),
    ]
    path = tmp_path / "old.0.et"
    path.write_bytes(trace(*(node.SerializeToString() for node in nodes)))
    assert {
        "compute": (1, 0, 70),
        "reduce_scatter": (1, 4096, 0),
        "all_to_all": (1, 4096, 0),
        "host": (1, 0, 0),
    } == by_kind(path)
    found = import_file(path)
    assert any("attribute dims of 2 nodes" in line.text for line in found.not_understood)
    assert any(line.text.startswith("2 dependencies") for line in found.not_understood)


@pytest.mark.parametrize(
    "value",
    [
        b"\x19" + b"\0" * 8,  # double
        b"\x2d" + b"\0" * 4,  # float
        b"\x48" + b"\xff" * 9 + b"\x01",  # int64 -1
        b"\x88\x01\x09",  # sint64 -5
        b"\x9d\x01" + b"\0" * 4,  # fixed32
        b"\xa9\x01" + b"\0" * 8,  # fixed64
        b"\x52\x04\x0a\x02\x01\x02",  # a list of int64
        b"\xfa\x01\x02ab",  # bytes
    ],
)
def test_attributes_of_all_types_are_passed_over_and_listed(tmp_path: Path, value: bytes) -> None:
    body = b"\x0a\x03odd" + value
    attributes = wire.collective_type("broadcast") + wire.attribute("comm_size", 300) + bytes([0x52, len(body)]) + body
    path = tmp_path / "x.et"
    path.write_bytes(trace(wire.node(1, "c", wire.COLLECTIVE, [], 0, attributes)))
    assert {"broadcast": (1, 300, 0)} == by_kind(path)
    assert ["attribute odd of 1 nodes"] == [line.text for line in import_file(path).not_understood]


def test_operators_and_messages_of_pytorchs_host() -> None:
    path = DATA / "execution_trace.json"
    found = import_file(path)
    assert {"all_reduce": (1, 2000, 0), "all_gather": (1, 64, 0), "reduce_scatter": (1, 80, 0), "send": (1, 10, 0),
            "host": (2, 0, 0)} == by_kind(path)  # fmt: skip
    assert ({"default_pg": 16, "tp": 2}, 16) == (found.operations.groups, found.tables["cluster"]["gpus"])


def test_the_feeders_json() -> None:
    wanted = {"host": (1, 0, 30), "compute": (1, 0, 120), "broadcast": (1, 0, 20), "all_reduce": (1, 2048, 60)}
    assert wanted == by_kind(DATA / "graph.json")


def test_a_trace_beside_a_prediction(dtsim: Dtsim, tmp_path: Path) -> None:
    """Of an exported step the kernels take what they were given, and collectives bring the same bytes, rank by rank alike."""
    job = ("llama3_8b_fsdp_8xh100", "--set", "model.layers=4")
    code, _, said = dtsim("export", "chakra", *job, "--output", str(tmp_path / "step"))
    assert 0 == code, said
    code, text, said = dtsim("run", *job, "--measured", str(tmp_path / "step.3.et"), "--json")
    assert 0 == code, said
    rows = {row["kind"]: row for row in json.loads(text)["measured"]["kernels"]}
    assert abs(rows["compute"]["error_pct"]) < 1
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        assert rows[kind]["measured_bytes"] == pytest.approx(rows[kind]["predicted_bytes"], rel=1e-6)
        assert rows[kind]["measured_s"] is None, "the export leaves these to ASTRA-sim"
    assert "bytes measured" in dtsim("run", *job, "--measured", str(tmp_path / "step.3.et"))[1]


def test_nodes_with_times_make_a_step(tmp_path: Path) -> None:
    start = b"\x30" + wire._varint(1_000_000)
    later = b"\x30" + wire._varint(1_200_000)
    path = tmp_path / "timed.et"
    path.write_bytes(
        trace(wire.node(1, "a", wire.COMPUTE, [], 50, start), wire.node(2, "b", wire.COMPUTE, [1], 300_000, later))
    )
    found = import_file(path)
    assert (0.5,) == pytest.approx(found.steps.values)
    assert "names no steps" in found.assumed[0].why


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.et", b"", "none that computes"),
        ("x.et", b"garbage of no kind", "byte 0.*is no Chakra trace"),
        ("x.et", wire.metadata(), "none that computes"),
        ("x.et", trace(wire.node(1, "a", wire.COMPUTE, [], 5, b""))[:-2], "byte 8.*are left"),
        ("x.et", trace(b"\x08\x01"), "a node without a name"),
        ("x.et", trace(b"\x0b\x12\x01a"), "wire type 3"),
        ("x.et", trace(b"\x12\x02\xff\xff"), "not UTF-8"),
        ("x.et", trace(b"\x12\x05a"), "beyond its message"),
        ("x.et", b"\xff" * 50, "a number without an end"),
        ("x.et", trace(wire.node(1, "m", 1, [], 0, b"")), "none that computes"),
        ("g.json", b'{"1": [0, 0]}', "each once"),
        ("g.json", b'{"1": ["a"]}', "GPUs by number"),
        ("p.json", b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1}]}', "node 1: expected a node with a name"),
        ("p.json", b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [', "no end"),
        ("p.json", b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [' + b'{"a":' * 100_000, "no JSON"),
        ("w.json", b'{"workload_graph": [{"Name": "a", "NodeType": "x"}]}', "NodeType"),
        ("w.json", b'{"workload_graph": [{"Name": "a", "NodeType": 4, "runtime": -1}]}', "runtime"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused_with_its_place(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(SpecError, match=f"{name}.*{said}"):
        import_file(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (wire.metadata() + b"\0" * (20 * 2**20), "without a name"),
        (b"\x80" * (60 * 2**20), "without an end"),
        (wire.metadata() + (1 << 35).to_bytes(5, "little"), "without an end|are left|without a name"),
        (trace(*[b"\x12\x01a\x18\x09"] * 200_000), "none that computes"),
    ],
)
def test_hostile_traces_are_refused_within_seconds(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "x.et.gz"
    path.write_bytes(gzip.compress(data, 1))
    began = time.process_time()
    with pytest.raises(SpecError, match=said):
        import_file(path)
    assert time.process_time() - began < 4


def test_a_trace_where_a_job_is_asked_for_says_what_it_lacks(dtsim: Dtsim) -> None:
    code, out, said = dtsim("run", str(DATA / "step.0.et"), "--cluster", "dgx_h100")
    assert (2, "", True) == (code, out, "--model" in said)
