"""Convolutions of recorded code: each product is priced, reads its windows where they lie, and counts the FLOP of its shape."""

import math

import pytest

from simulator.capture.facts import Facts
from simulator.capture.operators import Work, describe
from simulator.capture.program import captured_program
from simulator.capture.record import Capture, Event, Group
from simulator.hardware.cluster import load_cluster
from simulator.program.calls import Convolved, Product
from simulator.simulation import simulate_program


def tensor(*shape: int) -> Facts:
    stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return Facts(shape, stride, "fp16", 2)


def convolve(x: Facts, weight: Facts, y: Facts, **more: object) -> tuple[list[Work], list[Work]]:
    """What a convolution does, forward and backward."""
    given = {"input": x, "weight": weight, **more}
    asked = {"output_mask": (True, True, False), **more}
    backward = {"grad_output": y, "input": x, "weight": weight, **asked}
    return describe("aten.convolution", given, [y]), describe("aten.convolution_backward", backward, [x, weight])


def test_both_gradients_of_a_convolution_are_products_of_their_own() -> None:
    """A 3 x 3 window with a stride of 1, 64 to 128 channels: numbers of the input stand in nine windows."""
    x, weight, y = tensor(8, 64, 32, 32), tensor(128, 64, 3, 3), tensor(8, 128, 32, 32)
    (forward,), (into_input, into_weight) = convolve(x, weight, y)
    places = 8 * 32 * 32

    assert ((1, places, 128, 576), Convolved("TN", 9.0, 2.25)) == (forward.shape, forward.call)
    assert ((1, places, 64, 1152), Convolved("NN", 9.0, 2.25)) == (into_input.shape, into_input.call)
    assert ((1, 128, 576, places), Convolved("NT", 9.0, 2.25)) == (into_weight.shape, into_weight.call)
    assert {forward.flops} == {into_input.flops, into_weight.flops} == {2.0 * places * 128 * 576}
    assert (y.bytes + weight.bytes, x.bytes) == (into_input.read, into_input.written)
    assert (y.bytes + x.bytes, weight.bytes) == (into_weight.read, into_weight.written)


def test_windows_that_share_nothing_are_a_plain_product() -> None:
    """Patches of 16 x 16 of an image."""
    (forward,), (_, into_weight) = convolve(tensor(4, 3, 224, 224), tensor(1024, 3, 16, 16), tensor(4, 1024, 14, 14))

    assert (Product("TN"), Product("NT")) == (forward.call, into_weight.call)
    assert (1, 4 * 14 * 14, 1024, 768) == forward.shape


def test_a_transposed_convolution_is_the_input_gradient_of_one() -> None:
    """A window of 2 x 2 with a stride of 2 doubles an image: a product of each of its positions with all that the window makes."""
    x, weight, y = tensor(8, 128, 16, 16), tensor(128, 64, 2, 2), tensor(8, 64, 32, 32)
    (forward,), (into_input, into_weight) = convolve(x, weight, y, transposed=True)

    assert {2.0 * 8 * 16 * 16 * 128 * 64 * 4} == {one.flops for one in (forward, into_input, into_weight)}
    assert (1, 8 * 16 * 16, 128, 256) == into_input.shape
    assert (y.bytes, x.bytes) == (forward.written, into_input.written)


@pytest.mark.parametrize("mask", [(False, True, False), (True, False, False), (False, True, True)])
def test_a_gradient_that_nobody_asks_for_is_not_made(mask: tuple[bool, ...]) -> None:
    """That of the bias is a sum over positions."""
    x, weight, y = tensor(8, 64, 32, 32), tensor(128, 64, 3, 3), tensor(8, 128, 32, 32)
    _, backward = convolve(x, weight, y, output_mask=mask)

    assert sum(mask) == len(backward)
    assert ["gemm"] * sum(mask[:2]) + ["memory_bound"] * mask[2] == [one.work for one in backward]


def test_channels_in_groups_are_products_beside_each_other() -> None:
    (forward,), backward = convolve(tensor(2, 64, 8, 8), tensor(64, 1, 3, 3), tensor(2, 64, 8, 8), groups=64)

    assert (64, 128, 1, 9) == forward.shape
    assert {forward.flops} == {one.flops for one in backward}


def test_products_in_tf32_run_in_fp32_where_a_gpu_has_no_such_units() -> None:
    """What PyTorch does on a V100 that is allowed tf32; the answer says so."""
    recorded = Event(
        name="aten.mm", path="layers.0", phase="forward", stream=0, work="gemm", call="TN", dtype="tf32",
        shape=(1, 4096, 4096, 4096), flops=2.0 * 4096**3, read=1e8, written=1e8,
    )  # fmt: skip
    group = Group(name="", ranks=(0,))
    captured = Capture(
        script="train.py", world=1, rank=0, versions={}, events=(recorded,), storages=(), groups=(group,)
    )
    program = captured_program(captured)
    volta, ampere = (simulate_program(program, load_cluster(name, 1)) for name in ("v100_dgx1", "dgx_a100"))

    assert 2.0 * 4096**3 / volta.step_time < 16e12, "the peak of fp32"
    assert ["products in tf32 run in fp32, for v100_32gb_sxm2 has no tf32"] == volta.provenance["assumptions"]
    assert [] == ampere.provenance["assumptions"]
