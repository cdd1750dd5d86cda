"""A transformer's operators: parameters, FLOP and saved bytes against the papers' formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.workload.families import FAMILIES
from simulator.workload.layer_case import LayerCase
from simulator.workload.model import Model, load_model
from simulator.workload.operator import KernelStyle, LayerPart, Operator
from simulator.workload.precision import precision_named
from simulator.workload.workload import Workload

MEGATRON = KernelStyle(attention="unfused", dropout=True)


def part(model: Model, kind: str, style: KernelStyle = MEGATRON, sequences: int = 1, length: int = 2048) -> LayerPart:
    case = LayerCase(
        model=model,
        kind=kind,
        sequences=sequences,
        length=length,
        precision=precision_named("bf16"),
        style=style,
        vocabulary=model.vocabulary,
    )
    return FAMILIES.get("transformer").part(case)


@pytest.mark.parametrize("name", ["gpt3_175b", "gpt2_124m", "llama3_8b", "llama2_70b", "megatron_22b"])
def test_the_operators_hold_the_models_parameters(name: str) -> None:
    model = load_model(name)
    embedding, layer, head = (part(model, kind).parameters for kind in ("embedding", "layer", "head"))
    tied = model.vocabulary * model.hidden if model.tied_embeddings else 0
    assert model.parameters == embedding + model.layers * layer + head - tied


@pytest.mark.parametrize("name", ["mixtral_8x7b", "deepseek_v2", "deepseek_v2_lite", "gpt_oss_120b", "llama4_maverick"])
def test_operators_of_sparse_models_hold_their_parameters(name: str) -> None:
    model = load_model(name)
    sparse = sum(model.moe_layers)
    dense = (model.layers - sparse) * part(model, "layer").parameters if sparse < model.layers else 0
    ends = part(model, "embedding").parameters + part(model, "head").parameters
    assert model.parameters == dense + sparse * part(model, "moe layer").parameters + ends


def test_experts_keep_what_their_share_of_the_tokens_needs() -> None:
    """Per token: k (4 h + 6 f) for the experts, 2 h for the router's input, 12 E for logits, weights and choice."""
    model = load_model("qwen3_30b_a3b")
    h, f, k, experts = 2048, 768, 8, 128
    flash = KernelStyle()
    moe, dense = (part(model, kind, flash).operators for kind in ("moe layer", "layer"))
    rest = sum(s.bytes for o in dense for s in o.saved) - 2048 * (2 * h + 6 * model.ffn)
    saved = sum(s.bytes for o in moe for s in o.saved)
    assert pytest.approx(2048 * (k * (4 * h + 6 * f) + 2 * h + 12 * experts), rel=1e-12) == saved - rest


def test_latent_attention_keeps_latents_and_whole_heads() -> None:
    """Per token: 2 x (input h, twice each latent, queries and keys of nope + rope, values of v) and 4 per head."""
    model = load_model("deepseek_v2")
    h, q, kv, heads = 5120, 1536, 512, 128
    flash = part(model, "moe layer", KernelStyle()).operators
    names = [o.label for o in flash]
    mine = flash[1 : names.index("projection")]
    wide = heads * (192 + 192 + 128)
    assert 2048 * (2 * (h + 2 * q + 2 * kv + wide) + 4 * heads) == sum(s.bytes for o in mine for s in o.saved)


def test_saved_bytes_follow_korthikanti() -> None:
    """sbh (34 + 5 a s / h) for one layer in 16 bits (arXiv 2205.05198, section 4.1)."""
    model = load_model("gpt3_175b")
    saved = sum(s.bytes for o in part(model, "layer").operators for s in o.saved)
    assert 2048 * 12288 * (34 + 5 * 96 * 2048 / 12288) == saved


def test_selective_recompute_drops_the_attention_core_only() -> None:
    model = load_model("gpt3_175b")
    kept = sum(s.bytes for o in part(model, "layer").operators for s in o.saved if not s.droppable)
    assert 34 * 2048 * 12288 == kept


def test_flash_attention_saves_per_token_bytes_of_a_llama() -> None:
    """12 h + 4 h kv / heads + 6 f + 4 heads bytes per token with a flash kernel, no dropout, bf16."""
    model = load_model("llama3_8b")
    saved = sum(s.bytes for o in part(model, "layer", KernelStyle(), length=8192).operators for s in o.saved)
    assert 8192 * (12 * 4096 + 4 * 4096 * 8 / 32 + 6 * 14336 + 4 * 32) == saved


def test_forward_products_count_24_bsh2_plus_attention() -> None:
    """24 s b h^2 + 4 s^2 b h FLOP forward per layer of a plain transformer (Narayanan et al. 2021, appendix)."""
    model = load_model("gpt3_175b")
    s, h = 2048, 12288
    flops = sum(2.0 * o.shape[0] * o.shape[1] * o.shape[2] * o.shape[3] for o in part(model, "layer").operators)
    assert 24 * s * h**2 + 4 * s**2 * h == flops


def test_grouped_queries_shrink_the_qkv_product() -> None:
    model = load_model("llama3_8b")
    wide = next(o for o in part(model, "layer").operators if o.label == "qkv")
    assert (1, 2048, 4096 + 2 * 1024, 4096) == wide.shape


def test_multi_query_and_plain_mlp_have_their_shapes() -> None:
    model = load_model("llama3_8b").model_copy(update={"kv_heads": 1, "gated_mlp": False})
    operators = {o.label: o for o in part(model, "layer").operators}
    assert 4096 + 2 * 128 == operators["qkv"].shape[2]
    assert 14336 == operators["mlp up"].shape[2]
    assert "gelu" in operators


def test_kernel_switches_change_launches_and_traffic() -> None:
    """A bias is added by its product, so an activation function is one kernel either way, unless it is written out."""
    model = load_model("gpt3_175b").model_copy(update={"activation": "gelu_new"})

    def totals(style: KernelStyle) -> tuple[int, float]:
        operators = part(model, "layer", style).operators
        return sum(o.launches + o.backward_launches for o in operators), sum(o.read + o.written for o in operators)

    base = totals(MEGATRON)
    for switch in ("fused_softmax", "fused_bias_activation", "fused_residual"):
        launches, moved = totals(replace(MEGATRON, **{switch: False}))
        assert launches > base[0], switch
        assert moved > base[1], switch


def test_an_rms_norm_in_plain_operations_moves_an_order_more() -> None:
    """Counted pass by pass as autograd runs them: 36 bytes per element forward and 92 backward in place of 4 and 6."""
    model = load_model("llama3_8b")

    def moved(fused: bool) -> float:
        norm = part(model, "layer", replace(KernelStyle(), fused_norm=fused)).operators[0]
        return (norm.read + norm.written + norm.backward_read + norm.backward_written) / (2048 * 4096)

    assert (10, 128) == (moved(True), moved(False))


def test_a_rotary_embedding_in_plain_operations_passes_over_its_tensors_ten_and_fifteen_times() -> None:
    model = load_model("llama3_8b")
    once = 2048 * (model.heads + model.kv_heads) * model.head_dim * 2.0

    def passes(fused: bool) -> tuple[float, float]:
        rotary = next(o for o in part(model, "layer", KernelStyle(fused_rotary=fused)).operators if o.label == "rotary")
        return (rotary.read + rotary.written) / once, (rotary.backward_read + rotary.backward_written) / once

    assert ((2, 2), (10, 15)) == (passes(True), passes(False))


def test_a_rotary_embedding_of_complex_numbers_is_three_kernels_in_fp32_whatever_else_is_fused() -> None:
    """Widening 2 + 4 bytes of a number, product 4 + 4, narrowing 4 + 2, each way (torchtitan, apply_rotary_emb)."""
    model = load_model("llama3_8b")
    numbers = 2048 * (model.heads + model.kv_heads) * model.head_dim
    for fused in (True, False):
        style = KernelStyle(fused_rotary=fused, complex_rotary=True)
        o = next(o for o in part(model, "layer", style).operators if o.label == "rotary")
        assert (10 * numbers,) * 4 == (o.read, o.written, o.backward_read, o.backward_written)
        assert (6, 6) == (o.launches, o.backward_launches)


def test_a_softmax_that_is_not_fused_works_in_fp32() -> None:
    model = load_model("gpt3_175b")
    scores = model.heads * 2048.0**2

    def moved(fused: bool) -> tuple[float, float]:
        softmax = next(
            o for o in part(model, "layer", replace(MEGATRON, fused_softmax=fused)).operators if o.label == "softmax"
        )
        return (softmax.read + softmax.written) / scores, (softmax.backward_read + softmax.backward_written) / scores

    assert ((4, 6), (28, 32)) == (moved(True), moved(False))


@pytest.mark.parametrize("attention", ["unfused", "sdpa_2025"])
def test_keys_that_are_repeated_for_every_head_are_copied_with_scores_in_memory_too(attention: str) -> None:
    model = load_model("llama3_8b")
    style = KernelStyle(attention=attention, repeats_keys=True)
    o = next(o for o in part(model, "layer", style).operators if o.label == "repeated keys and values")

    few, many = (2 * 2 * 2048 * heads * model.head_dim for heads in (model.kv_heads, model.heads))
    assert (few, many) == (o.read, o.written)


def test_a_gate_of_its_own_is_a_product_of_its_own_with_the_same_weights() -> None:
    model = load_model("llama3_8b")
    joined, apart = (part(model, "layer", KernelStyle(joined_gate=value)) for value in (True, False))
    assert joined.parameters == apart.parameters
    assert [2] == [len(o.widths) for o in apart.operators if o.label == "mlp up"]


def test_queries_keys_and_values_apart_are_three_products_with_the_same_weights() -> None:
    model = load_model("llama3_8b")
    joined, apart = (part(model, "layer", KernelStyle(joined_qkv=value)) for value in (True, False))
    assert joined.parameters == apart.parameters
    assert [(4096, 1024, 1024)] == [o.widths for o in apart.operators if o.label == "qkv"]
    assert [(6144,)] == [o.widths for o in joined.operators if o.label == "qkv"]
    gpt = part(load_model("gpt2_355m"), "layer", KernelStyle(joined_qkv=False))
    assert [1] == [len(o.widths) for o in gpt.operators if o.label == "qkv"], "GPT-2 has one"


def test_sums_of_a_norm_in_a_kernel_of_their_own_read_both_operands_again() -> None:
    model = load_model("gpt2_355m")
    x = 2.0 * 2048 * model.hidden

    def again(**style: bool) -> float:
        operators = part(model, "layer", KernelStyle(**style)).operators
        return next(o.sums_read for o in operators if o.label == "mlp norm")

    assert (again(), again(norm_sums_apart=True)) == (0.0, 2 * x)


def test_a_gate_in_plain_operations_moves_what_a_trace_of_them_counts() -> None:
    """Passes over a half: function and product 3, 2 forward; backward 6, 3, and 2, 2 to join the halves of one tensor."""
    model = load_model("llama3_8b")
    half = 2.0 * 2048 * model.ffn

    def passes(**style: bool) -> tuple[float, ...]:
        operators = part(model, "layer", KernelStyle(**style)).operators
        o = next(o for o in operators if o.label == "swiglu")
        return tuple(n / half for n in (o.read, o.written, o.backward_read, o.backward_written))

    assert passes(plain_gate=True) == (3, 2, 8, 5)
    assert passes(fused_bias_activation=False, joined_gate=False) == (3, 2, 6, 3)
    assert passes() == (2, 1, 3, 2)


def test_a_rotary_embedding_of_a_quarter_of_each_head_joins_it_with_the_rest() -> None:
    """Reads and writes as PyTorch counts them for x cos + half-swapped x sin, the rest joined by torch.cat."""
    model = load_model("gpt_neox_20b")
    moved = 2 * 2.0 * 2048 * model.hidden
    rotary = next(o for o in part(model, "layer", KernelStyle(fused_rotary=False)).operators if o.label == "rotary")
    assert (rotary.read / moved, rotary.written / moved) == (2.375, 2.125)
    assert (rotary.backward_read / moved, rotary.backward_written / moved) == (4.875, 5.875)


def test_a_kernel_without_a_place_for_scales_leaves_a_scaled_rotary_embedding_to_plain_operations() -> None:
    """Megatron-Core, rope_utils.py: YaRN's factor is not for Transformer Engine's kernel; the whole head is then joined with nothing."""
    scaled, plain = load_model("gpt_oss_20b"), load_model("qwen3_30b_a3b")
    moved = 2.0 * 2048 * 64 * (scaled.heads + scaled.kv_heads)

    def turned(model: Model, **style: bool) -> Operator:
        return next(o for o in part(model, "moe layer", KernelStyle(**style)).operators if o.label == "rotary")

    apart = turned(scaled, scales_rotary=False)
    assert (apart.read / moved, apart.written / moved) == (6.5, 5.5)
    assert (apart.backward_read / moved, apart.backward_written / moved) == (10.5, 11.5)
    assert turned(scaled).read / moved == 1.0
    assert turned(plain, scales_rotary=False) == turned(plain)


def test_megatron_makes_cosines_and_sines_in_every_layer_for_every_tensor_that_it_turns() -> None:
    """Kernels of megatron-core 0.16.1's plain rotary embedding, recorded: twelve for each tensor forward, of latent attention thirteen, and
    one that joins it with what is not turned."""

    def kernels(name: str, kind: str, **style: bool) -> int:
        found = part(load_model(name), kind, KernelStyle(fused_rotary=False, **style)).operators
        return next(o.launches for o in found if o.label == "rotary")

    assert (kernels("qwen3_30b_a3b", "moe layer", rotary_tables=6), kernels("qwen3_30b_a3b", "moe layer")) == (24, 10)
    assert (kernels("deepseek_v3", "moe layer", rotary_tables=6), kernels("deepseek_v3", "moe layer")) == (28, 12)


def test_transformer_engine_copies_operands_around_flash_attention_alone() -> None:
    model = load_model("gpt2_355m")

    def copied(kernel: str) -> list[float]:
        style = KernelStyle(attention=kernel, copies_attention_output=True)
        operators = part(model, "layer", style).operators
        return [o.read / (2.0 * 2048 * model.hidden) for o in operators if o.label == "attention operands copied"]

    assert (copied("te"), copied("flash2")) == ([3.0], [])


def test_fused_rotary_and_cross_entropy_save_launches_and_traffic() -> None:
    model = load_model("llama3_8b")
    for kind, switch in (("layer", "fused_rotary"), ("head", "fused_cross_entropy")):
        on, off = (part(model, kind, replace(KernelStyle(), **{switch: value})).operators for value in (True, False))
        assert sum(o.launches for o in off) > sum(o.launches for o in on)
        assert sum(o.read + o.written for o in off) > sum(o.read + o.written for o in on)


def test_model_flops_follow_the_published_count() -> None:
    """96 B s l h^2 (1 + s/6h + V/16lh) with recompute is 72 B s l h^2 (1 + s/6h + V/12lh) without."""
    model = load_model("gpt3_175b")
    workload = Workload(model=model, sequence_length=2048, global_batch_size=64)
    b, s, n, h, v = 64, 2048, 96, 12288, model.vocabulary
    assert workload.model_flops == pytest.approx(
        72 * b * s * n * h**2 * (1 + s / (6 * h) + v / (12 * n * h)), rel=1e-12
    )


def test_a_norm_of_a_stream_cast_to_fp32_moves_both_and_keeps_the_wide_one() -> None:
    """Per element of 2 bytes: forward 2 + 4 in, 4 + 2 out; backward 2 + 4 + 4 in, 4 + 2 out; 4 kept."""
    model = load_model("llama3_8b")
    elements = 2048 * model.hidden
    narrow, wide = (
        next(o for o in part(model, "layer", KernelStyle(norms_in_fp32=cast)).operators if o.label == "mlp norm")
        for cast in (False, True)
    )
    moved = [(o.read, o.written, o.backward_read, o.backward_written, o.saved[0].bytes) for o in (narrow, wide)]
    assert [x / elements for x in moved[0]] == [2, 2, 4, 2, 2]
    assert [x / elements for x in moved[1]] == [6, 6, 10, 6, 4]


def test_measuring_accuracy_reads_the_logits_seven_times_more_and_keeps_nothing() -> None:
    model = load_model("llama3_8b")
    logits = 2048 * model.vocabulary
    plain, measured = (
        next(o for o in part(model, "head", KernelStyle(measures_accuracy=on)).operators if o.label == "cross entropy")
        for on in (False, True)
    )
    assert (measured.read - plain.read, measured.written - plain.written) == (14 * logits, 4 * logits)
    assert (measured.backward_read, measured.saved) == (plain.backward_read, plain.saved)


def test_gradients_of_a_split_tensor_are_copied_into_one_and_several_sequences_are_reordered() -> None:
    model = load_model("llama3_8b")
    width, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim

    def copies(sequences: int, **style: bool) -> tuple[float, float]:
        operators = part(model, "layer", KernelStyle(**style), sequences).operators
        found = [o for o in operators if o.label == "attention copies"]
        return (found[0].written, found[0].backward_written) if found else (0.0, 0.0)

    assert (0.0, 0.0) == copies(2) == copies(1, copies_attention_output=True)
    assert (0.0, 2.0 * 2048 * (width + 2 * kv)) == copies(1, splits_qkv=True)
    assert (2.0 * 4096 * width, 2.0 * 4096 * (2 * width + 2 * kv)) == copies(
        2, splits_qkv=True, copies_attention_output=True
    )
    assert (2 * 2.0 * 2048 * (width + 2 * kv), 0.0) == copies(1, packs_qkv=True)
