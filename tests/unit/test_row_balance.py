"""How full the fullest rank of experts is taken to be: as a row's words, its code's recipes or a loss have it."""

from __future__ import annotations

import pytest

from simulator.importers.table.row_experts import row_experts
from simulator.importers.vocabulary.names import load_names
from simulator.specs import names
from simulator.workload.model import load_model


@pytest.mark.parametrize(
    ("words", "ranks", "code", "wanted"),
    [
        ("natural routing", "8", "megatron_core", 1.23),
        ("natural routing", "8", "megatron_bridge", 1.23),
        ("natural routing", "1", "megatron_core", None),
        ("experts balanced by force", "8", "megatron_core", None),
        ("", "8", "megatron_core", 1.08),
        ("", "8", "torchtitan", 1.08),
        ("", "1", "torchtitan", None),
        ("", "8", "megatron_bridge", None),
        ("", "8", "megatron_bridge_library", 1.08),
        ("", "8", "primus", None),
    ],
)
def test_who_does_not_force_a_balance_fills_one_rank_more_than_the_others(
    words: str, ranks: str, code: str, wanted: float | None
) -> None:
    said: list[str] = []
    model = load_model("qwen3_30b_a3b")
    found = row_experts({"ep": ranks, "quality_note": words}, code, model, 1, 8, said)
    assert found.get("expert_imbalance") == wanted
    assert any(str(wanted) in line for line in said) == (wanted is not None)


def test_codes_that_force_a_balance_are_profiles_and_say_where_that_was_read() -> None:
    known = load_names().balanced_by_force
    assert set(known) <= set(names("frameworks"))
    assert all(len(source) > 20 for source in known.values())


def test_experts_cut_so_that_no_ranks_share_them_are_as_full_as_others() -> None:
    model, said = load_model("qwen3_30b_a3b"), list[str]()
    found = row_experts({"ep": "2", "etp": "2", "tp": "4"}, "megatron_core", model, 4, 2, said)
    assert found["expert_parallel"] == 1
    assert "expert_imbalance" not in found
