"""A model's parameters follow from its shape, exactly."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.errors import SpecError
from simulator.specs import names, validate_spec
from simulator.workload.blocks.attention import ATTENTIONS
from simulator.workload.layer_kind import layer_kind
from simulator.workload.model import Model, load_model
from tests.unit.closed_form import ClosedForm

SHAPE: dict[str, Any] = {
    "name": "m", "family": "f", "layers": 2, "hidden": 8, "heads": 4, "ffn": 32, "gated_mlp": False,
    "norm": "layer_norm", "positions": "learned", "tied_embeddings": True, "vocabulary": 100,
    "sequence_length": 16, "linear_bias": True,
    "qkv_bias": True,
}  # fmt: skip


def model(**changes: Any) -> Model:
    return validate_spec(SHAPE | changes, Model, "here")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2_124m", 124_439_808),
        ("gpt2_355m", 354_823_168),
        ("gpt2_774m", 774_030_080),
        ("gpt2_1.5b", 1_557_611_200),
        ("gpt2_64l", 1_389_327_360),
        ("llama2_7b", 6_738_415_616),
        ("llama3_8b", 8_030_261_248),
        ("llama3_70b", 70_553_706_496),
        ("llama3_405b", 405_853_388_800),
        ("llama3_2_1b", 1_235_814_400),
        ("llama3_2_3b", 3_212_749_824),
    ],
)
def test_counts_are_those_of_the_published_weights(name: str, parameters: int) -> None:
    assert parameters == load_model(name).parameters


@pytest.mark.parametrize("name", [name for name in names("models") if not load_model(name).network])
def test_graphs_hold_what_formulas_of_the_sizes_say(name: str) -> None:
    found = load_model(name)
    formula = ClosedForm(found)
    assert (formula.parameters(), formula.parameters(found.experts_per_token)) == (
        found.parameters,
        found.active_parameters,
    )
    assert formula.attention_weights == found.attention_weights
    assert (formula.layer_parameters, formula.mtp_parameters) == (found.layer_parameters, found.mtp_parameters)
    for kind in {layer_kind(name) for name in found.layer_kinds}:
        assert formula.seen_weights(kind) == found.seen_weights(kind)


def test_every_part_is_counted_once() -> None:
    h, f, v, s = 8, 32, 100, 16
    layer = (4 * h * h + 4 * h) + (2 * h * f + f + h) + 2 * 2 * h
    made = model()
    assert layer == made.layer_parameters
    assert (v * h + s * h, 2 * h) == (made.embedding_parameters, made.head_parameters)
    assert 2 * layer + v * h + s * h + 2 * h == made.parameters


def test_an_untied_head_adds_its_matrix_and_rotary_positions_none() -> None:
    assert 100 * 8 == model(tied_embeddings=False).parameters - model().parameters
    assert 16 * 8 == model().parameters - model(positions="rotary").parameters


def test_fewer_key_value_heads_shrink_attention_only() -> None:
    grouped = model(kv_heads=2)
    assert 2 * (2 * 2) * 8 + 2 * (2 * 2) == model().layer_parameters - grouped.layer_parameters


def test_defaults_follow_from_the_heads() -> None:
    assert (4, 2) == (model().kv_heads, model().head_dim)
    assert 128 == model(head_dim=128, heads=3).head_dim


def test_a_gated_mlp_has_three_matrices() -> None:
    assert 8 * 32 + 32 == model(gated_mlp=True).layer_parameters - model().layer_parameters


def test_a_mixture_of_experts_counts_all_and_those_a_token_meets() -> None:
    h, e, f, s = 8, 4, 16, 12
    made = model(gated_mlp=True, linear_bias=False, experts=e, experts_per_token=2, expert_ffn=f, shared_expert_ffn=s)
    rest = (4 * h * h + 3 * h) + 2 * 2 * h + h * e + 3 * h * s
    assert rest + e * 3 * h * f == made.moe_layer_parameters
    ends = made.embedding_parameters + made.head_parameters
    assert (2 * (rest + 4 * 3 * h * f) + ends, 2 * (rest + 2 * 3 * h * f) + ends) == (
        made.parameters,
        made.active_parameters,
    )
    assert 32 == model(experts=4, experts_per_token=1).expert_ffn  # that of a dense layer


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [True] * 6),
        ({"dense_layers": 2}, [False] * 2 + [True] * 4),
        ({"moe_every": 2}, [False, True] * 3),
        ({"moe_every": 3, "dense_layers": 3}, [False] * 5 + [True]),
    ],
)
def test_which_layers_have_experts(changes: dict[str, Any], expected: list[bool]) -> None:
    assert expected == list(model(layers=6, experts=4, experts_per_token=2, **changes).moe_layers)


def test_latent_attention_counts_its_own_matrices() -> None:
    h, heads, q, kv, nope, rope, v = 8, 4, 6, 5, 3, 2, 7
    made = model(
        attention="latent", q_lora_rank=q, kv_lora_rank=kv, qk_nope_head_dim=nope, qk_rope_head_dim=rope, v_head_dim=v,
        linear_bias=False, qkv_bias=False, norm="rms_norm",
    )  # fmt: skip
    queries = h * q + q * heads * (nope + rope) + q
    keys = h * (kv + rope) + kv * heads * (nope + v) + kv
    rest = 2 * h + 2 * h * 32  # norms and MLP
    assert queries + keys + heads * v * h == made.layer_parameters - rest
    assert (nope + rope, v) == (made.head_dim, made.value_head_dim)


@pytest.mark.parametrize(
    ("name", "active"),
    [("mixtral_8x7b", 12.9e9), ("qwen3_30b_a3b", 3.3e9), ("qwen3_235b_a22b", 22e9), ("deepseek_v3", 37e9),
     ("deepseek_v2", 21e9), ("llama4_maverick", 17e9)],
)  # fmt: skip
def test_active_parameters_are_those_published(name: str, active: float) -> None:
    assert pytest.approx(active, rel=0.02) == load_model(name).active_parameters


def test_padding_of_the_vocabulary() -> None:
    gpt3 = load_model("gpt3_175b")
    assert [50304, 50432, 51200, 50257] == [
        gpt3.padded_vocabulary(1),
        gpt3.padded_vocabulary(2),
        gpt3.padded_vocabulary(8),
        gpt3.padded_vocabulary(1, multiple=1),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "here: hidden must be a multiple of heads, but 8 is none of 3; or give head_dim"),
        ({"kv_heads": 3}, "here: heads must be a multiple of kv_heads, but 4 is none of 3"),
        ({"kv_heads": 0}, "here: kv_heads = 0: expected at least 1"),
        ({"layers": 10_001}, "here: layers = 10001: expected at most 10000"),
        ({"hidden": 10**6 + 4}, "here: hidden = 1000004: expected at most 1000000"),
        ({"vocabulary": 10**7 + 1}, "here: vocabulary = 10000001: expected at most 10000000"),
        ({"expert_ffn": 16}, "here: expert_ffn = 16 belongs to a mixture of experts, but experts = 0; give experts or leave "
         "it out"),
        ({"experts": 4}, "here: experts_per_token must lie in 1..experts, but it is 0 of 4"),
        ({"experts": 4, "experts_per_token": 2, "dense_layers": 2}, "here: dense_layers = 2 and moe_every = 1 leave none of "
         "the 2 layers with experts; make them smaller or leave out experts"),
        ({"kv_lora_rank": 4}, 'here: kv_lora_rank belongs to latent attention; give attention = "latent" or leave it out'),
        ({"attention": "latent"}, "here: latent attention needs kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim"),
        ({"ffn": 0}, "here: ffn = 0: expected at least 1"),
        (
            {"architecture": "decoder", "window": 8, "mixers": ["window"]},
            "here: architecture: 'decoder' is not known; known: encoder, encoder_decoder, network, transformer, vision",
        ),
        (
            {"attention": "sparse"},
            f"here: attention: 'sparse' is not known; known: {', '.join(sorted(m.name for m in ATTENTIONS))}",
        ),
        ({"norm": "batch"}, "here: norm = \"batch\": expected one of 'layer_norm', 'rms_norm'"),
        ({"heads": "4"}, 'here: heads = "4": expected a whole number such as 8, got text'),
        ({"parameters_published": "175 GB"}, 'here: parameters_published = "175 GB": expected a number of parameters '
         "such as \"175 B\", got '175 GB'"),
    ],
)  # fmt: skip
def test_shapes_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        model(**changes)
    assert message == str(caught.value)
