"""Every block keeps the contract, and a new attention or mixer is one small class that nothing else knows of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import simulator
from simulator.lowering import lower
from simulator.plan.plan import Plan
from simulator.testing.block_contract import BlockContract, small_model, trying
from simulator.workload.blocks.attention import ATTENTIONS
from simulator.workload.blocks.attention.base import Attention
from simulator.workload.blocks.attention.core import core
from simulator.workload.blocks.mixer import MIXERS
from simulator.workload.blocks.mixer.base import Mixer
from simulator.workload.builder import LayerBuilder
from simulator.workload.families import base as families
from simulator.workload.graph import Keep, LayerGraph, Tensor
from simulator.workload.model import Model, load_model
from simulator.workload.workload import Workload

LATENT = {"attention": "latent", "kv_heads": 8, "head_dim": 24} | dict(
    q_lora_rank=48, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16
)
STATE = dict(ssm_heads=8, ssm_head_dim=16, ssm_groups=4, ssm_state=16, conv_width=4)
MODELS = {
    "standard": small_model(),
    "latent": small_model(**LATENT),
    "gated": small_model(attention_gate=True, qk_norm=True, post_norms=True),
    "learned": small_model(positions="learned", norm="layer_norm", linear_bias=True, qkv_bias=True, gated_mlp=False),
    "relative": small_model(positions="relative_bias"),
    "transformer_xl": small_model(positions="transformer_xl"),
    "window": small_model(window=32),
    "mamba2": small_model(mixers=["mamba2", "full"], **STATE),
    "delta": small_model(mixers=["delta", "none"], mlps=[True], **STATE),
    "experts": small_model(experts=8, experts_per_token=2, shared_expert_ffn=64, mtp_layers=1, clamped_gate=True),
    "encoder": small_model(
        architecture="encoder", positions="learned", token_types=2, head_transform=True, pooler=True
    ),
    "vision": small_model(architecture="vision", positions="learned", patch_inputs=48),
    "encoder_decoder": small_model(architecture="encoder_decoder", encoder_layers=2, target_length=64),
}


class Shared(Attention):
    """One product for keys that are values too, as a newcomer would write it."""

    name = "shared_values"
    source = "invented for this test"

    def build(self, g: LayerBuilder, x: Tensor) -> Tensor:
        q = g.tensor("q", *g.tokens, g.heads, g.head_dim)
        k = g.tensor("k", *g.tokens, g.kv_heads, g.head_dim)
        g.linear("queries and keys", x, (q, k), (g.hidden,), keep=Keep(tensor=x, element=g.kept), bias=False)
        return core(g, q, k, k.view(*g.tokens, g.kv_heads, g.value_dim))


class Shift(Mixer):
    """Every token takes over what stood before it, projected."""

    name = "shift"
    source = "invented for this test"

    def build(self, g: LayerBuilder, x: Tensor) -> Tensor:
        moved = g.moves("shift", x, "shifted")
        out = g.tensor("mixed", *g.tokens, g.hidden)
        inner = g.tensor("inner", *g.tokens, g.ffn)
        g.linear("widen", moved, (inner,), (g.hidden,), keep=Keep(tensor=moved), bias=False)
        return g.linear("narrow", inner, (out,), (g.ffn,), keep=Keep(tensor=inner), bias=False)[0]


@pytest.fixture
def newcomers() -> Iterator[dict[str, Model]]:
    with trying(Shared()), trying(Shift()):
        yield {"attention": small_model(attention="shared_values"), "mixer": small_model(mixers=["shift"])}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
class TestEveryBlock(BlockContract):
    def test_keeps_the_contract(self, model: Model) -> None:
        self.check_all(model)


@pytest.mark.parametrize("name", ATTENTIONS.members)
class TestEveryAttention(BlockContract):
    def test_keeps_the_contract_in_a_model_that_names_it(self, name: str) -> None:
        self.check_all(MODELS.get(name) or small_model(attention=name))


@pytest.mark.parametrize("name", MIXERS.members)
class TestEveryMixer(BlockContract):
    def test_keeps_the_contract_in_a_model_that_names_it(self, name: str) -> None:
        fields = {"window": 32} if name in ("window", "chunk") else STATE if MIXERS.get(name).state else {}
        self.check_all(small_model(mixers=[name], **fields))


def test_a_new_attention_and_a_new_mixer_are_predicted(newcomers: dict[str, Model]) -> None:
    """Parameters, FLOP, saved tensors and the program follow from their graphs."""
    for model in newcomers.values():
        BlockContract().check_all(model)
    h, plain = 64, small_model()
    assert 2 * 4 * 8 * h == plain.parameters - newcomers["attention"].parameters  # no values of their own
    mixing = {name: Workload(model=m, sequence_length=128, global_batch_size=1) for name, m in newcomers.items()}
    for work in mixing.values():
        assert work.model_flops > 0
        assert lower(replace(work, global_batch_size=8), Plan(tensor_parallel=2), 8).size > 0


@pytest.mark.parametrize(
    "recompute", [{}, {"recompute": "full"}, {"recompute": "operators"}, {"recompute": "selective"}]
)
@pytest.mark.parametrize("name", ["llama3_8b", "deepseek_v2_lite"])
def test_nothing_depends_on_what_operations_are_called(
    name: str, recompute: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(tensor_parallel=2, framework="megatron_bridge_26_06", **recompute)
    work = Workload(model=load_model(name), sequence_length=1024, global_batch_size=64, precision="fp8")

    cluster = simulator.load_cluster("dgx_h100")

    def figures() -> tuple[float, list[float]]:
        prediction = simulator.simulate(work, plan, cluster)
        return prediction.step_time, list(prediction.memory.total)

    def labels() -> set[str]:
        items = lower(work, plan, cluster.world_size).items
        return {label for item in items for table, _ in getattr(item, "pieces", ()) for label in table.label}

    before, made, known = figures(), families.operators, labels()

    def renamed(graph: LayerGraph) -> Any:
        return made(BlockContract.renamed(graph))

    monkeypatch.setattr(families, "operators", renamed)
    from simulator.lowering.layers import expand

    known_by_name = (
        families.parts,
        expand._layer_cost,
        expand._plain,
        expand._forward,
        expand._backward,
        expand._layer_costs,
    )
    for kept in known_by_name:
        kept.cache_clear()
    after, numbered = figures(), labels()
    for kept in known_by_name:
        kept.cache_clear()
    assert before == after
    assert "mlp norm" in known - numbered
    assert "operation 1" in numbered - known
