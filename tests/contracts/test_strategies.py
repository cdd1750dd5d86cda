"""Every layout keeps the strategy contract, and the contract has teeth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import simulator
from simulator.errors import LayoutError, UnknownNameError
from simulator.lowering import resolve
from simulator.lowering.layers.expand import layer_costs
from simulator.partition import propagate
from simulator.partition.compose import compose
from simulator.partition.layout import PARTIAL, Layout, Shard
from simulator.partition.redistribute import redistribute
from simulator.partition.strategies import STRATEGIES
from simulator.partition.strategies.base import Strategy
from simulator.partition.strategies.megatron import Megatron
from simulator.testing.block_contract import small_model
from simulator.testing.strategy_contract import StrategyContract, trying
from simulator.workload.builder import LayerBuilder


@pytest.mark.parametrize("strategy", list(STRATEGIES), ids=lambda s: str(s.name))
def test_every_strategy_keeps_the_contract(strategy: Strategy) -> None:
    StrategyContract(strategy).check_all(chains=8 if len(strategy.axes) == 1 else 1)  # many ranks take long: more below


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if len(s.axes) > 1], ids=lambda s: str(s.name))
def test_strategies_of_several_axes_keep_it_on_many_chains(strategy: Strategy) -> None:
    StrategyContract(strategy).check_all()


def run(layout: Layout) -> None:
    """Run some random chains on ranks."""
    contract = StrategyContract(Megatron())
    for seed in range(12):
        random = np.random.default_rng(seed)
        contract.check_numbers(layout, contract.chain(layout, random), random)


def test_a_collective_that_is_forgotten_gives_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever kind of collective a derivation leaves out, some rank ends with the wrong numbers or the wrong part."""
    layout = compose("megatron", 4, True)
    run(layout)
    for name in ("all_gather", "reduce_scatter", "all_reduce"):

        def without(held: Any, wanted: Any, name: str = name) -> Any:
            return tuple(move for move in redistribute(held, wanted) if move.collective != name)

        monkeypatch.setattr(propagate, "redistribute", without)
        with pytest.raises((AssertionError, ValueError)):
            run(layout)


def test_a_sum_that_is_taken_for_a_part_gives_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    real = propagate.wanted

    def careless(along: Any, tensor: Any, result: bool = False) -> Any:
        found = real(along, tensor, result)
        return {axis: Shard(tensor.dims[0].name) if place == PARTIAL else place for axis, place in found.items()}

    monkeypatch.setattr(propagate, "wanted", careless)
    with pytest.raises((AssertionError, ValueError)):
        run(compose("megatron", 4))


class Twice(Strategy):
    """Divides both dimensions of the MLP's weights."""

    name = "twice"
    source = "a wrong idea"
    dims = frozenset(("ffn", "hidden"))


class MlpOnly(Strategy):
    """Leaves attention whole."""

    name = "mlp_only"
    source = "a test"
    dims = frozenset(("ffn", "vocabulary"))


def test_a_strategy_that_divides_a_weight_twice_is_refused() -> None:
    wrong = r"layout 'twice' lays ffn and hidden of \(hidden, ffn\) both on mesh axis 'tensor'"
    with trying(Twice()), pytest.raises(LayoutError, match=wrong):
        StrategyContract(Twice()).check_all()


def predicted(**plan: Any) -> Any:
    work = simulator.Workload(model=small_model(), sequence_length=128, global_batch_size=32)
    return simulator.simulate(work, simulator.Plan(tensor_parallel=4, **plan), simulator.load_cluster("dgx_h100"))


@pytest.mark.parametrize("attention", ["flash2", "unfused"])
def test_a_layout_that_leaves_attention_whole_goes_without_sequence_parallelism_only(attention: str) -> None:
    with trying(MlpOnly()):
        whole = predicted(layout="mlp_only", attention=attention)
        assert whole.peak_memory > predicted(attention=attention).peak_memory
        with pytest.raises(
            LayoutError, match=r"layout 'mlp_only' .*('tensor' divides sequence of|divides sequence of '(k, turned|v)')"
        ):
            predicted(layout="mlp_only", attention=attention, sequence_parallel=True)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_whole_vocabulary_is_held_by_every_rank_and_nothing_is_exchanged_around_it(sequence_parallel: bool) -> None:
    work = simulator.Workload(model=small_model(vocabulary=512), sequence_length=128, global_batch_size=8)

    def ends(layout: str) -> dict[str, Any]:
        plan = simulator.Plan(
            tensor_parallel=4, sequence_parallel=sequence_parallel, layout=layout, framework="megatron_core"
        )
        costs = layer_costs(work, resolve(work, plan, 8))
        return {kind: costs[kind] for kind in ("embedding", "head", "layer")}

    def summed(cost: Any) -> float:
        return float(sum(count for _, _, count in cost.summed))

    divided, whole = ends("megatron"), ends("whole_vocabulary")
    table = 512 * 64
    for kind in ("embedding", "head"):
        assert not [
            label for label, group in zip(whole[kind].forward.label, whole[kind].forward.group, strict=True) if group
        ]
        assert table - table / 4 == whole[kind].parameters - divided[kind].parameters
        assert table * sequence_parallel == summed(whole[kind]) - summed(divided[kind])
    flops = [float(costs["head"].forward.flops.sum()) for costs in (divided, whole)]
    assert flops[1] == flops[0] * (1 if sequence_parallel else 4)


class HiddenOnly(Strategy):
    """Divides the residual stream."""

    name = "hidden_only"
    source = "a test"
    dims = frozenset(("hidden",))


def test_a_norm_over_what_is_divided_adds_its_sums_up_and_what_keeps_its_parts_apart_is_found() -> None:
    """Of a layer norm two numbers a token, in fp32, forward and backward; of an RMS norm one."""
    with trying(HiddenOnly()):
        StrategyContract(HiddenOnly()).check_all()
        for norm, numbers in (("rms_norm", 1), ("layer_norm", 2)):
            work = simulator.Workload(model=small_model(norm=norm), sequence_length=128, global_batch_size=8)
            cost = layer_costs(work, resolve(work, simulator.Plan(tensor_parallel=4, layout="hidden_only"), 4))["layer"]
            for table in (cost.forward, cost.backward):
                sums = [
                    m
                    for m, label in zip(table.message, table.label, strict=True)
                    if label.endswith("norm sums all_reduce")
                ]
                assert [4.0 * numbers * 128] * 2 == sums


def test_a_kernel_that_needs_more_of_what_is_divided_than_sums_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = LayerBuilder.kernel
    monkeypatch.setattr(LayerBuilder, "kernel", lambda g, *given, **more: plain(g, *given, **more | {"sums": 0}))
    work = simulator.Workload(model=small_model(name="made anew"), sequence_length=128, global_batch_size=8)
    wrong = "layout 'hidden_only' divides hidden of 'hidden states' on mesh axis 'tensor', over which operation 'attention norm' sums"
    with trying(HiddenOnly()), pytest.raises(LayoutError, match=wrong):
        _ = layer_costs(work, resolve(work, simulator.Plan(tensor_parallel=4, layout="hidden_only"), 4))[
            "layer"
        ].forward


@pytest.mark.parametrize(
    ("sequence_parallel", "forward", "back"), [(True, "all_gather", "reduce_scatter"), (False, "", "all_reduce")]
)
def test_a_key_that_all_heads_share_is_brought_to_all_and_its_gradients_are_added(
    sequence_parallel: bool, forward: str, back: str
) -> None:
    latent = {"attention": "latent", "kv_heads": 8, "head_dim": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
    model = small_model(**latent, v_head_dim=16, kv_lora_rank=32)
    work = simulator.Workload(model=model, sequence_length=128, global_batch_size=8)
    plan = simulator.Plan(tensor_parallel=4, sequence_parallel=sequence_parallel, framework="megatron_core")
    cost = layer_costs(work, resolve(work, plan, 8))["layer"]
    found = [
        [
            (name, float(message))
            for name, label, message in zip(t.work, t.label, t.message, strict=True)
            if "rotary key" in label
        ]
        for t in (cost.forward, cost.backward)
    ]
    size = 128 * 8 * 2.0
    assert [[(forward, size)] * bool(forward), [(back, size)]] == found


def test_an_unknown_layout_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match=r"no layout 'megatrom'. Did you mean 'megatron'"):
        predicted(layout="megatrom")


@pytest.mark.parametrize(
    ("dims", "said"),
    [(frozenset(("fnn", "vocabulary")), r"divides \['fnn'\], but no tensor"), ("ffn", "dims is a frozenset of names")],
)
def test_a_dimension_that_no_layer_has_is_caught(dims: Any, said: str) -> None:
    """A slip of the pen would leave a dimension whole in silence."""

    class Slip(Strategy):
        name, source = "slip", "nowhere"

    Slip.dims = dims
    Slip.__abstractmethods__ = frozenset()
    with trying(Slip()), pytest.raises(AssertionError, match=said):
        StrategyContract(Slip()).check_all()
