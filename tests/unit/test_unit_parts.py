"""Weights fetched tensor by tensor: which, how often, and what stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lowered import links, lowered, workload
from tests.profiles import profile


def test_weights_that_modules_fetch_one_by_one_come_tensor_by_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a layer's tensors, once forward, and twice backward where the forward is run again."""

    def gathered(framework: str, **plan: Any) -> tuple[int, float]:
        program = lowered(workload(batch=8), 8, zero_stage=3, framework=framework, **plan)
        found = [(i, n) for i, n in links(program, "all_gather") if "weights of layer" in i.name]
        return sum(n for _, n in found), sum(i.message * n for i, n in found)

    monkeypatch.chdir(tmp_path)
    plain = profile(tmp_path, "by_tensor", "deepspeed", keeps_tensors_below=0, reuse_distance=0)
    layers, once = gathered("pytorch_fsdp", recompute="none")
    tensors, same = gathered(plain, recompute="none")
    again, more = gathered(plain, recompute="full")
    assert (192, 12 * 192, 12 * 288) == (layers, tensors, again)
    assert (pytest.approx(once), pytest.approx(1.5 * once)) == (same, more)


def test_gradients_added_up_whole_are_reduced_once_in_the_format_they_are_added_in() -> None:
    """KempnerForge: bf16 gradients, fp32 sums; of two microbatches one reduction, and fp32 gradients of all weights until then."""
    work = workload("gpt3_1_3b", precision="bf16_true")
    plan: dict[str, Any] = {"zero_stage": 3, "framework": "kempnerforge"}
    once, each = (lowered(work, 8, **plan, **more) for more in ({}, {"fsdp_reduce": "microbatch"}))

    def reduced(program: Any) -> list[tuple[float, str, int]]:
        found = [(i.message, i.dtype, n) for i, n in links(program, "reduce_scatter") if "of layer" in i.name]
        return sorted(found)

    weights = 12 * 2048**2 + 13 * 2048
    assert [(4.0 * weights, "fp32", 24)] == reduced(once)
    assert [(4.0 * weights, "fp32", 48)] == reduced(each)


def test_tensors_used_again_soon_or_small_are_not_fetched_again() -> None:
    """DeepSpeed of 2021 on GPT-3: 8 of a layer's 12 tensors are small and stay; the last product's matrix serves both passes."""
    program = lowered(workload(batch=8), 8, zero_stage=3, framework="deepspeed_2021", recompute="full")
    found = {i.name: (i, n) for i, n in links(program, "all_gather")}
    layers = {name: n for name, (_, n) in found.items() if "weights of layer" in name}
    assert [288, 288, 288, 192] == list(layers.values())
    reduced = [n for i, n in links(program, "reduce_scatter") if "gradients of layer" in i.name]
    assert [96] * 12 == reduced
    kept, times = found["all_gather small tensors of rank 0"]
    hidden = 12288
    small = 96 * 13 + 2  # of a layer 13 times hidden: norms, biases of 3, 1, 4 and 1; and the last norm
    assert (1, small * hidden * 2) == (times, kept.message)
    standing = {t.name: t.bytes for t in program.resident[0].tensors}
    assert standing["small tensors, kept gathered"] == kept.message
    assert {8} == {i.slices for i, _ in found.values() if i is not kept}
    assert 8 * (1 + 96 * 8 + 2) == kept.slices


def test_tensors_come_together_up_to_a_bucket_and_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-3: matrices of 3, 1, 4 and 4 times 12288^2, each with the small tensors behind it; all bytes as before."""
    monkeypatch.chdir(tmp_path)
    names = (profile(tmp_path, f"bucket_{size}", "maxtext", gather_bucket=f'"{size}"') for size in ("1 GB", "0 B"))
    bucketed, plain = (lowered(workload(batch=8), 8, zero_stage=3, framework=name) for name in names)

    def layer(program: Any, collective: str) -> list[tuple[float, int]]:
        return [(i.message, n) for i, n in links(program, collective) if "of layer" in i.name]

    for collective in ("all_gather", "reduce_scatter"):
        ((whole, times),) = layer(plain, collective)
        parts = layer(bucketed, collective)
        assert {times} == {n for _, n in parts}
        assert whole == pytest.approx(sum(size for size, _ in parts))
        assert [3, 1, 4, 4] == [round(size / (2 * 12288**2)) for size, _ in parts if size > 1e8]


def test_all_reduces_between_copies_are_joined_up_to_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {}
    for number, size in enumerate(("0 B", "2 GB", "1 TB")):
        name = profile(tmp_path, f"copies_{number}", "maxtext", copies_bucket=f'"{size}"')
        program = lowered(workload(batch=8), 8, zero_stage=3, shard_size=4, framework=name)
        found[size] = [(i.message, n) for i, n in links(program, "all_reduce") if "between copies" in i.name]
    apart, some, one = (sum(n for _, n in links_) for links_ in found.values())
    assert apart > some > one == 1
    totals = [sum(size * n for size, n in links_) for links_ in found.values()]
    assert totals == [pytest.approx(totals[0])] * 3
    assert max(size for size, _ in found["2 GB"]) <= 2e9


def test_fsdp2_copies_gathered_weights_out_and_gradients_to_where_they_are_reduced_from() -> None:
    """FSDP2: 2 + 2 bytes of a weight before a layer's forward and again before its backward; 2 + 4 of its gradient, in place of a sum."""

    def moved(framework: str, **plan: Any) -> dict[str, list[float]]:
        program = lowered(workload(batch=16), 8, zero_stage=3, framework=framework, recompute="none", **plan)
        found: dict[str, list[float]] = {}
        for item in program.items:
            for table, count in getattr(item, "pieces", ()):
                for i, label in enumerate(table.label):
                    found.setdefault(label, []).append(count * (float(table.read[i]) + float(table.written[i])))
        return found

    both, forward = moved("torchtitan_eager"), moved("torchtitan_eager", reshard_after_forward=False)
    matrix = 12288.0**2
    copies = both["gathered weights copied out"]
    assert len(copies) > len(forward["gathered weights copied out"])
    assert max(copies[1:-1]) == pytest.approx(4 * 12 * matrix, rel=0.001)
    assert max(both["gradients copied to be reduced"][1:-1]) == pytest.approx(6 * 12 * matrix, rel=0.001)
    assert not {"gathered weights copied out", "mlp down gradient accumulation"} & set(moved("pytorch_fsdp"))
    assert "mlp down gradient accumulation" in moved("torchtitan_eager", fsdp_reduce="step")


@pytest.mark.parametrize("framework", ["deepspeed", "paxml_unrolled"])
def test_experts_that_all_ranks_hold_are_fetched_too(framework: str) -> None:
    """Whatever comes together, the bytes are those of all weights: of Mixtral 8x7B forty-five of forty-seven billions are experts'."""

    def gathered(name: str) -> float:
        program = lowered(workload("mixtral_8x7b", batch=8), 8, zero_stage=3, framework=name, recompute="none")
        return sum(i.message * n for i, n in links(program, "all_gather"))

    whole = gathered("pytorch_fsdp")
    assert whole > 2 * 45e9
    assert whole <= gathered(framework) * 1.001 <= 2.002 * whole
