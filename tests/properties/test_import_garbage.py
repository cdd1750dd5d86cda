"""Whatever file is handed to an importer: an answer, or one message within 2 s and 500 MB; nothing is run, nothing hangs."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.errors import SimulatorError
from simulator.importers import IMPORTERS
from simulator.importers.chakra_wire import _varint, framed, metadata
from simulator.importers.document import MOST_BYTES, Document
from simulator.importers.jobs import import_files, load_any_job

DATA = Path(__file__).parents[1] / "data" / "imports"
FIXTURES = sorted(path for path in DATA.iterdir() if path.is_file())
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
PIECES = st.sampled_from(
    [
        "--num-layers", "--hidden-size", "12", "-1", "0", "1e9", "nan",
        "$X", "${X:-3}", "$((1/0))", "$((9**9**9))", "(", ")", "\"", "'", "\\",
        "\n", " ", "if", "fi", "case", "esac", "A=(",
        "A+=", "A=", "${A[@]}", "`", "$(", ";;", "&&", "<<END", "--seq-length", "#", "|", "{", "}",
        "--moe-layer-freq", "([0]*9999999)", "--pipeline-model-parallel-layout", "t*9999|", "torchrun", "--nproc_per_node",
        "train.py",
    ]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("auto"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "model_type",
                    "zero_optimization",
                    "stage",
                    "training",
                    "parallelism",
                    "trainer",
                    "model",
                    "hidden_size",
                    "text_config",
                    "num_layers",
                    "per_device_train_batch_size",
                    "distributed_type",
                    "fsdp_config",
                    "bf16",
                    "enabled",
                    "train_batch_size",
                    "schema",
                    "nodes",
                    "workload_graph",
                    "traceEvents",
                    "Name",
                    "NodeType",
                    "1",
                    "x",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


def survives(name: str, data: bytes) -> None:
    """Every importer that takes the file answers, or refuses it in words."""
    document = Document(name, data)
    begun = time.process_time()
    for importer in IMPORTERS:
        assert 0 <= importer.recognises(document) <= 3
        said = "answered"
        try:
            json.dumps(importer.read(document).to_dict(), default=str)
        except SimulatorError as error:
            said = str(error)
        assert 0 < len(said) < 20_000
    assert time.process_time() - begun < 20


@QUICK
@given(st.lists(PIECES, max_size=40), st.sampled_from(["x.sh", "x.txt"]))
def test_any_script(pieces: list[str], name: str) -> None:
    survives(name, " ".join(pieces).encode())


@QUICK
@given(JSON)
def test_any_json(data: object) -> None:
    survives("x.json", json.dumps(data).encode())


FIELD = st.tuples(st.integers(1, 31), st.sampled_from([0, 1, 2, 5]), st.binary(max_size=9) | st.integers(0, 2**70))
"""A field of a message of Protocol Buffers: number, wire type, and what stands in it."""


def encoded(fields: list[tuple[int, int, bytes | int]]) -> bytes:
    out = b""
    for number, kind, value in fields:
        whole = value if isinstance(value, bytes) else _varint(value)
        out += _varint(number << 3 | kind) + (_varint(len(whole)) if kind == 2 else b"") + whole
    return out


@QUICK
@given(st.lists(st.lists(FIELD, max_size=6), max_size=6), st.sampled_from(["x.et", "x"]))
def test_any_messages(messages: list[list[tuple[int, int, bytes | int]]], name: str) -> None:
    nodes = [encoded([(2, 2, b"name"), *fields]) for fields in messages]
    survives(name, metadata() + b"".join(framed(node) for node in nodes))


@QUICK
@given(
    st.lists(
        st.lists(
            st.sampled_from(["layer", "-1", "0", "1", "1e400", "9" * 30, "NONE", "ALLREDUCE", "ALLTOALL_EP", "X_EP"])
        ),
        max_size=5,
    ),
    st.sampled_from(
        ["HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 all_gpus: 8", "MICRO", "DATA x: y"]
    ),
    st.sampled_from(["1", "3", "999999999", "x"]),
)
def test_any_workload(rows: list[list[str]], first: str, count: str) -> None:
    survives("x.txt", "\n".join([first, count, *("\t".join(row) for row in rows)]).encode())


@QUICK
@given(
    st.binary(max_size=300),
    st.sampled_from(["x.json", "x.yaml", "x.toml", "x.sh", "x.log", "x.xml", "x", "x.csv", "x.et"]),
)
def test_any_bytes(data: bytes, name: str) -> None:
    survives(name, data)


@QUICK
@given(st.sampled_from(FIXTURES), st.integers(0, 3000), st.integers(0, 40), st.binary(max_size=20))
def test_any_broken_fixture(path: Path, cut: int, gap: int, middle: bytes) -> None:
    data = path.read_bytes()
    survives(path.name, data[:cut] + middle + data[cut + gap :])


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_every_fixture_is_read_by_one_importer(path: Path) -> None:
    document = Document(path.name, path.read_bytes())
    scores = sorted(one.recognises(document) for one in IMPORTERS)
    assert scores[-1] > scores[-2]


def refused(path: Path, said: str, model: bool = False) -> None:
    with pytest.raises(SimulatorError, match=said):
        load_any_job(None, (), str(path), "dgx_h100") if model else import_files([path])


def test_pipes_devices_and_folders(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    os.mkfifo(tmp_path / "pipe.toml")
    for name in ("pipe.json", "pipe.toml"):
        refused(tmp_path / name, "is a pipe")
        refused(tmp_path / name, "is a pipe", model=True)
    refused(Path("/dev/zero"), "is a device")
    refused(tmp_path, "is a directory")
    refused(tmp_path / "none.json", "cannot be read")


@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        ("bomb.json", lambda: gzip.compress(b"0" * (2 * MOST_BYTES), 1), "larger than 64 MiB"),
        ("cut.json", lambda: gzip.compress(os.urandom(4000))[:2000], "ends early"),
        ("bad.json", lambda: b"\x1f\x8b" + b"x" * 50, "no gzip file"),
        ("deep.json", lambda: b"[" * 500_000, "nested more than"),
        ("deep.yaml", lambda: b"[" * 500, "nested more than"),
        ("deeper.yaml", lambda: b"[" * 500_000, "nested more than|exceeded maximum nesting depth"),  # our words or libyaml's
        ("deep.toml", lambda: b"a = " + b"[" * 100_000, "no TOML"),
        ("laughs.yaml", lambda: b"a: &a [x]\n" + b"b: [*a,*a]\n" * 9, "aliases"),
        ("tags.yaml", lambda: b"a: !!python/object/apply:os.system ['true']\n", "is of none of the"),
        ("long.json", lambda: b'{"a": "' + b"x" * (2 * 2**20) + b'"}', "larger than 1 MiB"),
        ("line.log", lambda: b"x" * (60 * 2**20), "is of none of the"),
        ("line.sh", lambda: b"--num-layers --hidden-size " + b"'" * (2**20 - 33), "quote"),
        ("long.sh", lambda: b"--num-layers --hidden-size " + b"x" * 2**20, "larger than 1 MiB"),
        ("digits.json", lambda: b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}", "is no JSON"),
        ("nul.sh", lambda: b"--num-layers 2 --hidden-size 3\0", "NUL"),
        ("topo.xml", lambda: b'<!DOCTYPE a [<!ENTITY b "b">]><system version="1"><cpu >&b;</cpu></system>', "entity is not read"),
    ],
)  # fmt: skip
def test_hostile_files(tmp_path: Path, name: str, make: object, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(make())  # type: ignore[operator]
    refused(path, said)


def test_a_gigabyte_line_takes_neither_time_nor_memory(tmp_path: Path) -> None:
    """In a process of its own, which says how much memory it had at most [KiB]."""
    path = tmp_path / "huge.log"
    with open(path, "wb") as file:
        file.truncate(2**30)
    code = (
        "import sys\nfrom simulator.cli import main\ntry:\n    main(['import', sys.argv[1]])\nfinally:\n"
        "    print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    assert (2, True) == (done.returncode, "larger than 64 MiB" in done.stderr)
    assert int(done.stdout) < 500 * 2**10
