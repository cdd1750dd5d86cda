"""What a table's row says of overlap is what its plan has."""

from __future__ import annotations

import pytest

from tests.rows import placed


def test_products_in_pieces_are_placed_from_a_rows_own_words() -> None:
    assert (
        4
        == placed(overlap="TP comm overlap, DP overlap", tp="2", seq_parallel="1", dp="").fields[
            "tensor_parallel_splits"
        ]
    )
    assert "tensor_parallel_splits" not in placed(overlap="TP comm overlap").fields, "nothing to overlap"
    assert (
        4 == placed(overlap="DP overlap, TP overlap", tp="2", seq_parallel="1", dp="").fields["tensor_parallel_splits"]
    )
    off = placed(overlap="none (TP/PP/DP overlap off)", tp="2", seq_parallel="1", dp="").fields
    assert "tensor_parallel_splits" not in off


@pytest.mark.parametrize(
    ("overlap", "framework", "schedule"),
    [
        ("DP overlap, PP overlap", "Megatron-LM (Megatron-Core)", "interleaved_1f1b"),
        ("pipeline overlap", "Megatron-LM (Megatron-Core)", "interleaved_1f1b"),
        ("none (TP/PP/DP overlap off)", "Megatron-LM (Megatron-Core)", "one_f_one_b"),
        ("DP overlap", "Megatron-LM (Megatron-Core)", "one_f_one_b"),
        ("PP overlap", "DeepSpeed", "one_f_one_b"),
    ],
)
def test_messages_between_stages_overlap_in_the_interleaved_schedule_alone(
    overlap: str, framework: str, schedule: str
) -> None:
    row = {"pp": "2", "dp": "", "schedule": "", "vp": "", "framework": framework, "zero_stage": "0"}
    assert schedule == placed(overlap=overlap, **row).fields["schedule"]
