"""Our orders are the ones that torch.distributed.pipelining executes, action for action, with its communication between them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from simulator.schedules import SCHEDULES, PipelineOrder, Shape
from simulator.schedules.torch_comms import torch_text
from simulator.schedules.torch_csv import read_order_file_text

DATA = Path(__file__).parents[1] / "data"


def rows_of(name: str) -> list[list[str]]:
    return [line.split(";", 5) for line in (DATA / name).read_text().splitlines() if not line.startswith("#")][1:]


ROWS = rows_of("torch_orders.csv")
COMMS = {
    key: "".join(row[5].replace(" ", ",") + "\n" for row in rows)
    for key, rows in itertools.groupby(rows_of("torch_comms.csv"), key=lambda row: tuple(row[:4]))
}
ORDERS = {
    key: PipelineOrder.parse("\n".join(row[5].replace(" ", ",") for row in rows))
    for key, rows in itertools.groupby(ROWS, key=lambda row: tuple(row[:4]))
}


@pytest.mark.parametrize("key", ORDERS, ids="-".join)
def test_an_order_is_pytorchs(key: tuple[str, ...]) -> None:
    schedule, shape = SCHEDULES.get(key[0]), Shape(*map(int, key[1:]))
    actual = schedule.order(shape, schedule.placement(shape))
    if key[0] == "GPipe":  # PyTorch drains oldest first; the paper newest first, with the same times and peaks
        flipped = shape.microbatches - 1 - actual.microbatch
        microbatch = np.where(actual.kind, flipped, actual.microbatch)
        actual = PipelineOrder(actual.rank_offsets, actual.kind, actual.chunk, microbatch)
    assert ORDERS[key].to_text(torch=True) == actual.to_text(torch=True)


@pytest.mark.parametrize("key", ORDERS, ids="-".join)
def test_an_order_of_pytorch_is_read_and_written_unchanged(key: tuple[str, ...]) -> None:
    expected = [row[5].replace(" ", ",") for row in ROWS if tuple(row[:4]) == key]
    assert expected == ORDERS[key].to_text(torch=True).splitlines()


@pytest.mark.parametrize("key", COMMS, ids="-".join)
def test_messages_gathers_and_reductions_stand_where_pytorch_puts_them(key: tuple[str, ...]) -> None:
    order, placement, shape = read_order_file_text(COMMS[key])
    assert Shape(*map(int, key[1:])) == shape
    assert COMMS[key] == torch_text(order, placement, comms=True)
    if key[0] != "GPipe":  # drained in another order, see above
        schedule = SCHEDULES.get(key[0])
        assert schedule.order(shape, schedule.placement(shape)) == order


def test_the_file_has_every_schedule_and_microbatches_that_are_no_multiple_of_the_ranks() -> None:
    assert {("Interleaved1F1B", "8", "4", "2"), ("InterleavedZeroBubble", "8", "4", "2")} <= set(ORDERS)
    first = {"GPipe", "1F1B", "Interleaved1F1B"}
    assert {*first, "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"} == {key[0] for key in ORDERS}
    assert {key[0] for key in ORDERS} == {key[0] for key in COMMS}
