"""Which matrices of a layer have low-rank adapters, by the names that codes give their modules."""

from __future__ import annotations

import re
from collections.abc import Iterable

from simulator.workload.model_fields import ADAPTED, Adapted

__all__ = ["adapted_modules"]

_QKV: tuple[Adapted, ...] = ("query", "key", "value")
_MODULES: tuple[tuple[str, tuple[Adapted, ...]], ...] = (
    ("all|all[-_]linear", ADAPTED),
    (r"attention_qkv|linear_qkv|query_key_value|qkv_proj|wqkv|w_pack|c_attn|qkv", _QKV),
    ("attention_all", (*_QKV, "output")),
    ("mlp_all", ("gate", "up", "down")),
    ("all_linear_layers", ADAPTED),
    (r"q_proj|wq|to_q|q_a_proj|q_b_proj|linear_q", ("query",)),
    (r"k_proj|wk|to_k|linear_k|kv_a_proj_with_mqa", ("key",)),
    (r"v_proj|wv|to_v|linear_v", ("value",)),
    (r"kv_b_proj", ("key", "value")),
    (r"o_proj|out_proj|output_proj|wo|linear_proj|attention_dense", ("output",)),
    (r"gate_up_proj|linear_fc1|mlp_fc1", ("gate", "up")),
    (r"gate_proj|w1|linear_fc1_gate", ("gate",)),
    (r"up_proj|w3|linear_fc1_up|fc1|fc_in|dense_h_to_4h|c_fc", ("up",)),
    (r"down_proj|w2|fc2|fc_out|linear_fc2|mlp_fc2|dense_4h_to_h", ("down",)),
    (r"dense|c_proj", ("output", "down")),
)
"""Names of modules: of PEFT's targets on the models of transformers, of torchtune, NeMo and Megatron-Bridge; and what they are here."""


def adapted_modules(names: Iterable[str]) -> tuple[tuple[Adapted, ...], tuple[str, ...]]:
    """Return (the matrices that these modules are, in the order of a layer, names that are none of a layer's).

    >>> adapted_modules(["q_proj", "model.layers.0.self_attn.v_proj", "lm_head"])
    (('query', 'value'), ('lm_head',))
    >>> adapted_modules(["linear_qkv"])[0], len(adapted_modules(["all-linear"])[0])
    (('query', 'key', 'value'), 7)
    """
    found: set[Adapted] = set()
    unknown = []
    for name in names:
        last = name.strip().rpartition(".")[2].lower()
        parts = next((parts for pattern, parts in _MODULES if re.fullmatch(pattern, last)), ())
        found.update(parts)
        unknown += [] if parts else [name]
    return tuple(part for part in ADAPTED if part in found), tuple(unknown)
