"""Our orders are the ones that torch.distributed.pipelining executes, action for action."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from simulator.schedules import SCHEDULES, PipelineOrder, Shape

DATA = Path(__file__).parents[1] / "data" / "torch_orders.csv"
ROWS = [line.split(";") for line in DATA.read_text().splitlines() if not line.startswith("#")][1:]
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
        microbatch = [f if k else i for k, f, i in zip(actual.kind, flipped, actual.microbatch, strict=True)]
        actual = PipelineOrder(actual.rank_offsets, actual.kind, actual.chunk, microbatch)
    assert ORDERS[key].to_text() == actual.to_text()


def test_the_file_has_microbatches_that_are_no_multiple_of_the_ranks() -> None:
    assert ("Interleaved1F1B", "8", "4", "2") in ORDERS
    assert {"GPipe", "1F1B", "Interleaved1F1B"} == {key[0] for key in ORDERS}
