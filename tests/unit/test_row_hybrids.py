"""Rows whose model has other mixers than attention: by name one of ours, whole or cut short."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.importers.table.rows import CannotPlace
from tests.rows import placed


def test_a_row_that_names_a_hybrid_of_ours_is_that_model() -> None:
    sizes = {"arch_layers": "118", "hidden": "8192", "heads": "64", "kv_heads": "8", "ffn_hidden": "32768", "tp": "8"}
    row = placed(**sizes, model="NemotronH-56B", attn_type="hybrid mamba2", pp="1", dp="2", seq_len="8192")
    assert {"mamba2": 54, "none": 54, "full": 10} == dict(Counter(row.workload.model.layer_mixers))
    with pytest.raises(CannotPlace, match="hybrid"):
        placed(**{**sizes, "arch_layers": "60"}, model="NemotronH-56B", attn_type="hybrid mamba2", pp="1", dp="2")


@pytest.mark.parametrize(("layers", "delta"), [(48, 36), (24, 18), (8, 6)])
def test_whole_repeats_of_a_hybrid_of_ours_are_that_model_cut_short(layers: int, delta: int) -> None:
    sizes = {"hidden": "2048", "heads": "16", "kv_heads": "2", "head_dim": "256", "ffn_hidden": "5120", "ep": "8"}
    experts = {"moe_experts": "512", "moe_topk": "10", "moe_ffn_hidden": "512", "moe_shared_ffn": "512"}
    row = placed(**sizes, **experts, arch_layers=str(layers), model="qwen3-next-80b-a3b", pp="1", dp="8")
    assert {"delta": delta, "full": layers - delta} == dict(Counter(row.workload.model.layer_mixers))
    if layers < 48:
        assert f"the first {layers} layers of qwen3_next_80b_a3b" in row.assumed
    part = placed(**sizes, **experts, arch_layers="10", model="qwen3-next-80b-a3b", pp="1", dp="8")
    assert {"full"} == set(part.workload.model.layer_mixers)
