"""What was recorded of a step, as a program: rows, mesh axes, messages and memory; nothing here needs torch."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.capture.answer import collectives_of, peak_of, saved_of
from simulator.capture.child import script_of
from simulator.capture.facts import Facts
from simulator.capture.mesh import mesh_of
from simulator.capture.operators import describe
from simulator.capture.program import captured_program
from simulator.capture.record import BEFORE, Capture, Event, Group, Storage, read_capture, write_capture
from simulator.capture.streams import Streams
from simulator.errors import SpecError
from simulator.hardware.cluster import load_cluster
from simulator.program.calls import Traffic
from simulator.program.spec import verify
from simulator.program.text import parse_text, render_text
from simulator.simulation import simulate_program
from tests.command import Dtsim


def event(path: str = "layers.0", phase: str = "forward", stream: int = 0, **facts: object) -> Event:
    plain = {"name": "aten.mul", "work": "memory_bound", "call": "stream", "read": 1e6, "written": 1e6}
    return Event(**{"path": path, "phase": phase, "stream": stream, **plain, **facts})


def message(work: str, stream: int, size: float, *after: int, **facts: object) -> Event:
    plain = {"path": "layers.0", "phase": "backward", "name": f"c10d.{work}", "call": "-", "group": 0, "waits": False}
    return Event(**{**plain, "work": work, "stream": stream, "message": size, "after": after, **facts})


def step(*events: Event, storages: tuple[Storage, ...] = (), world: int = 8, groups: tuple[Group, ...] = ()) -> Capture:
    return Capture(
        script="train.py", world=world, rank=0, versions={}, events=events, storages=storages,
        groups=groups or (Group(name="", ranks=tuple(range(world))),),
    )  # fmt: skip


def storage(size: float, born: int, died: int | None, category: str = "activations") -> Storage:
    return Storage(name="x", category=category, bytes=size, born=born, died=died)


def test_layers_that_are_alike_are_priced_once() -> None:
    layers = [event(f"layers.{n}.norm") for n in range(32)]
    program = captured_program(step(*layers, event("norm")))

    assert (33, 2) == (program.size, len(program.items))


def test_a_message_beside_the_compute_waits_for_what_it_sends_and_is_waited_for_by_what_reads_it() -> None:
    program = captured_program(
        step(
            event(),
            event("layers.1"),
            message("all_reduce", 1, 100.0, 1),
            event("layers.2"),
            event("layers.3", after=(2,)),
        )
    )
    verify(program)

    assert "all_reduce" == program.items[program.item[2]].collective
    assert [1] == program.after[program.after_offsets[2] : program.after_offsets[3]].tolist()
    assert [2] == program.after[program.after_offsets[4] : program.after_offsets[5]].tolist()
    assert 0 == program.after_offsets[4] - program.after_offsets[3]


def test_a_message_on_the_first_stream_is_a_row_of_its_layer() -> None:
    inner = message("all_reduce", 0, 64.0, waits=True, phase="forward")
    program = captured_program(step(event(), inner, event()))

    assert 1 == program.size
    assert [0.0, 64.0, 0.0] == program.items[0].pieces[0][0].message.tolist()


def test_memory_at_the_peak_is_that_of_the_order_of_issue_whatever_rows_are_made() -> None:
    storages = (
        storage(10.0, BEFORE, None, "weights"),
        storage(100.0, 0, 5),
        storage(40.0, 1, 1, "workspace"),
        storage(30.0, 2, 3, "workspace"),
        storage(50.0, 4, None, "gradients"),
        storage(25.0, BEFORE, 0, "gradients"),
    )
    capture = step(*[event() for _ in range(4)], *[event(phase="backward") for _ in range(2)], storages=storages)
    program = captured_program(capture)
    prediction = simulate_program(program, load_cluster("dgx_h100", 8))

    assert 160.0 == peak_of(capture)["total"]
    assert 160.0 == pytest.approx(prediction.peak_memory, abs=1e-6)
    assert {"layers.*": 100.0} == saved_of(capture)


def test_a_program_keeps_its_tokens_in_its_text() -> None:
    program = captured_program(replace(step(event()), tokens=2048), "pytorch_ddp")
    text = render_text(program)

    assert text.startswith('program "train.py" axes=dp=8 framework=pytorch_ddp tokens=16384')
    assert text == render_text(parse_text(text))


def test_a_rank_of_a_pipeline_is_refused_for_its_others_are_missing() -> None:
    with pytest.raises(SpecError, match=r"rank 4, which was not recorded.*--rank 0,4"):
        captured_program(step(event(), message("send", 1, 8.0, 0, peer=4)))


def test_groups_become_axes_named_by_the_script_or_by_what_runs_over_them() -> None:
    tensor = Group(name="mesh_tp", ranks=(0, 1))
    data = Group(name="", ranks=(0, 2, 4, 6))
    sums = message("all_reduce", 1, 8.0, group=1)
    axes, spans = mesh_of([step(sums, groups=(tensor, data))])

    assert (("tp", 2), ("dp", 4)) == axes
    assert ((("tp",), ("dp",)),) == spans


def test_a_group_of_all_ranks_spans_all_axes() -> None:
    groups = (Group(name="mesh_tp", ranks=(0, 1)), Group(name="", ranks=tuple(range(8))))

    assert ("tp", "dp") == mesh_of([step(groups=groups)])[1][0][1]


def test_groups_that_are_no_grid_are_refused() -> None:
    with pytest.raises(SpecError, match="no part of a grid"):
        mesh_of([step(groups=(Group(name="", ranks=(0, 1, 3)),))])


def test_a_capture_passes_as_text_and_other_text_is_refused() -> None:
    capture = step(event(), message("all_reduce", 1, 8.0, 0), storages=(storage(1.0, 0, None),))

    assert capture == read_capture(write_capture(capture))
    with pytest.raises(SpecError, match="no capture"):
        read_capture("{}")


def test_messages_are_counted_by_what_they_are() -> None:
    found = collectives_of(step(*[message("all_reduce", 1, 8.0) for _ in range(3)]))

    assert [("all_reduce", 8.0, 8, 3)] == [(c["kind"], c["message_bytes"], c["ranks"], c["count"]) for c in found]


def matrix(rows: int, columns: int, transposed: bool = False) -> Facts:
    return Facts((rows, columns), (1, rows) if transposed else (columns, 1), "bf16", 2)


@pytest.mark.parametrize(("left", "right", "order"), [(False, True, "TN"), (False, False, "NN"), (True, False, "NT")])
def test_the_order_of_operands_follows_from_how_they_lie_in_memory(left: bool, right: bool, order: str) -> None:
    arguments = {"self": matrix(8, 16, left), "mat2": matrix(16, 4, right)}
    (work,) = describe("aten.mm", arguments, [matrix(8, 4)])

    assert (1, 8, 4, 16) == work.shape
    assert order == work.call.order
    assert 2.0 * 8 * 4 * 16 == work.flops


def test_attention_of_another_librarys_kernel_is_known_by_its_name() -> None:
    heads = Facts((2, 128, 16, 64), (131072, 1024, 64, 1), "bf16", 2)
    groups = Facts((2, 128, 4, 64), (32768, 256, 64, 1), "bf16", 2)
    (work,) = describe(
        "flash_attn._flash_attn_forward", {"q": heads, "k": groups, "v": groups, "causal": True}, [heads]
    )

    assert ("attention", (2, 16, 128, 64), 4) == (work.work, work.shape, work.call.kv_heads)
    assert 4.0 * 2 * 16 * 128 * 128 * 64 == work.flops


def test_attention_whose_values_are_narrower_than_its_keys_counts_both_widths() -> None:
    keys = Facts((2, 16, 128, 96), (196608, 12288, 96, 1), "bf16", 2)
    values = Facts((2, 16, 128, 64), (131072, 8192, 64, 1), "bf16", 2)
    given = {"query": keys, "key": keys, "value": values, "is_causal": True}
    (work,) = describe("aten._scaled_dot_product_cudnn_attention", given, [values])

    assert (2, 16, 128, 80) == work.shape
    assert 2.0 * 2 * 16 * 128 * 128 * (96 + 64) == work.flops


def test_a_kernel_of_no_known_kind_is_memory_traffic_and_said_to_be_unknown() -> None:
    one = matrix(4, 4)
    (work,) = describe("mylib.fused_thing", {"x": one}, [one])

    assert ("memory_bound", False, 32.0, 32.0) == (work.work, work.known, work.read, work.written)


def test_a_lookup_reads_the_rows_it_finds_not_the_table() -> None:
    table, found = Facts((32000, 1024), (1024, 1), "bf16", 2), Facts((8, 1024), (1024, 1), "bf16", 2)
    (work,) = describe("aten.embedding", {"weight": table, "indices": Facts((8,), (1,), "fp32", 8)}, [found])

    assert found.bytes + 64 == work.read


def test_what_an_operation_in_place_is_given_beside_is_read_too() -> None:
    """Two tensors of one shape are two; one that is given twice is read once."""
    one = matrix(64, 32)
    (summed,) = describe("aten.add_", {"self": one, "other": one}, [], [one])
    (squared,) = describe(
        "aten._foreach_addcmul_", {"self": [one], "tensor1": [one], "tensor2": [one]}, [], [one], [one]
    )
    (copied,) = describe("aten.copy_", {"self": one, "src": one}, [], [one])
    (kept,) = describe("aten.add", {"self": one, "other": one, "out": one}, [], [one])

    assert [2.0, 2.0, 1.0, 2.0] == [work.read / one.bytes for work in (summed, squared, copied, kept)]
    assert {one.bytes} == {work.written for work in (summed, squared, copied, kept)}


def test_a_loss_picks_a_word_of_each_token() -> None:
    logs, loss = Facts((8, 32000), (32000, 1), "fp32", 4), Facts((), (), "fp32", 4)
    given = {"self": logs, "target": Facts((8,), (1,), "fp32", 8)}
    (forward,) = describe("aten.nll_loss_forward", given, [loss])
    (backward,) = describe("aten.nll_loss_backward", {"grad_output": loss, **given}, [logs])

    assert (128.0, 128.0) == (forward.read, backward.read)
    assert logs.bytes == backward.written


def test_a_softmax_reads_a_long_row_for_its_maximum_its_sum_and_its_result() -> None:
    """Four kilobytes stay where they are read; the rows of a vocabulary do not."""

    def read(name: str, columns: int) -> float:
        logits = Facts((8, columns), (columns, 1), "fp32", 4)
        given = {"self": logits} if name == "_log_softmax" else {"grad_output": logits, "output": logits}
        return describe(f"aten.{name}", given, [logits])[0].read / logits.bytes

    assert [1.0, 3.0] == [read("_log_softmax", columns) for columns in (1024, 32000)]
    assert [2.0, 4.0] == [read("_log_softmax_backward_data", columns) for columns in (1024, 32000)]


def test_operations_are_long_passes_where_tensors_lie_alike_in_one_format() -> None:
    """Others load a number at a time: parts of tensors, other orders, casts, sums over rows, products with a number of each row."""
    rows, row = Facts((64, 32), (32, 1), "fp32", 4), Facts((64, 1), (1, 1), "fp32", 4)
    half, turned = Facts((64, 32), (64, 1), "fp32", 4), Facts((64, 32), (1, 64), "fp32", 4)
    narrow, number = Facts((64, 32), (32, 1), "bf16", 2), Facts((), (), "fp32", 4)

    def walk(name: str, *read: Facts, made: Facts) -> str:
        call = describe(f"aten.{name}", {str(i): one for i, one in enumerate(read)}, [made])[0].call
        assert isinstance(call, Traffic)
        return call.access

    assert {"stream"} == {
        walk("add", rows, rows, made=rows),
        walk("mul", rows, number, made=rows),
        walk("relu", turned, made=turned),
    }
    assert {"plain"} == {
        walk("_to_copy", rows, made=narrow), walk("mul", rows, row, made=rows), walk("mean", rows, made=row),
    }  # fmt: skip
    assert {"strided"} == {
        walk("mul", half, rows, made=rows), walk("clone", turned, made=rows), walk("silu", half, made=half),
    }  # fmt: skip
    assert "stream" == walk("cat", half, half, made=Facts((64, 64), (64, 1), "fp32", 4))


def test_lists_of_tensors_take_as_many_kernels_as_their_chunks_need() -> None:
    small, large = Facts((4,), (1,), "fp32", 4), Facts((65536 * 1000,), (1,), "fp32", 4)

    assert 2 == describe("aten._foreach_add_", {"self": [small] * 200}, [], [small] * 200)[0].launches
    assert 4 == describe("aten._foreach_add_", {"self": [large]}, [], [large])[0].launches


def test_streams_remember_who_waits_for_whom_once() -> None:
    streams = Streams()
    side = streams.Stream()
    streams.add(0, 0, set())
    done = side.record_event(streams.Event().record(streams.current_stream()))
    side.wait_stream(streams.current_stream())
    with streams.stream(side):
        assert (0,) == streams.add(1, streams.current, set())
        assert () == streams.add(2, streams.current, {0})
    assert (2,) == streams.add(3, streams.current, {1, 2})
    assert done is not None


@pytest.mark.parametrize(
    ("target", "says"),
    [("nowhere.py", "no such script"), ("model.toml:step", "FILE.py"), ("train.py:not-a-name", "name of a function")],
)
def test_a_script_that_is_none_is_refused(tmp_path: Path, target: str, says: str) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(SpecError, match=says):
        script_of(str(tmp_path / target))


def test_a_script_that_is_none_is_not_said_to_be_executed(dtsim: Dtsim, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("echo hello")
    code, _, said = dtsim("capture", str(tmp_path / "train.sh"))
    assert (2, True, False) == (code, "FILE.py:step" in said, "executing" in said)


def test_without_torch_one_message_says_what_to_install(
    dtsim: Dtsim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out, said = dtsim("capture", str(script))

    assert (2, "") == (code, out)
    assert "pip install 'dtsim[torch]'" in said


def test_a_program_needs_a_cluster_and_takes_no_settings_of_a_job(dtsim: Dtsim, tmp_path: Path) -> None:
    path = tmp_path / "step.program"
    path.write_text(render_text(captured_program(step(event()))))

    code, _, said = dtsim("run", str(path))
    assert (2, True) == (code, "--cluster" in said)
    code, _, said = dtsim("run", str(path), "--cluster", "dgx_h100", "--set", "plan.tensor_parallel=2")
    assert (2, True) == (code, "cluster.nics" in said)
    h100, a100 = (
        json.loads(dtsim("run", str(path), "--cluster", "dgx_h100", "--json", *more)[1])["step_time_s"]["value"]
        for more in ((), ("--set", "cluster.gpu=a100_80gb_sxm"))
    )
    assert h100 < a100


@pytest.mark.parametrize("verb", [("explain",), ("compare",), ("search",), ("goodput",), ("export", "megatron")])
def test_a_program_in_place_of_a_job_is_known_for_one(dtsim: Dtsim, tmp_path: Path, verb: tuple[str, ...]) -> None:
    path = tmp_path / "step.program"
    path.write_text(render_text(captured_program(step(event()))))
    code, _, said = dtsim(*verb, str(path))

    assert 2 == code
    assert (
        f"is a program: what happens in a step, without a plan to change. Way out: dtsim run {path} --cluster C" in said
    )


@pytest.mark.parametrize(
    ("option", "value"), [("--world", "0"), ("--rank", "8"), ("--rank", "0,x"), ("--time-limit", "-1 s")]
)
def test_options_of_a_capture_that_cannot_be_are_refused_before_anything_runs(
    dtsim: Dtsim, tmp_path: Path, option: str, value: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('this ran')")
    code, _, said = dtsim("capture", str(script), option, value)

    assert 2 == code
    assert "this ran" not in said
