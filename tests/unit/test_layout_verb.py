"""dtsim layout: what it prints, its JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import Dtsim

CONTRACT = [
    "gpt3_13b",
    "--mesh",
    "rows=8,cols=8",
    "--map",
    "batch=rows",
    "--map",
    "ffn=cols",
    "--map",
    "heads=cols",
    "--map",
    "vocab=cols",
]


def answer(dtsim: Dtsim, *words: str) -> dict[str, Any]:
    code, text, said = dtsim("layout", *words, "--json")
    assert 0 == code, said
    found: dict[str, Any] = json.loads(text)
    return found


def op(found: dict[str, Any], label: str) -> dict[str, Any]:
    return next(one for one in found["ops"] if one["label"] == label)


def test_the_json_says_of_every_operation_what_a_rank_has_and_exchanges(dtsim: Dtsim) -> None:
    found = answer(dtsim, *CONTRACT)
    up = op(found, "mlp up")
    assert "bsh,hf->bsf" == up["einsum"]
    x, w, *_ = up["operands"]
    assert ({"batch": 1, "sequence": 2048, "hidden": 5120}, "input") == (x["local_shape"], x["role"])
    assert {"hidden": 5120, "ffn": 2560} == w["local_shape"]
    assert {"cols": "S(ffn)"} == w["layout"]
    assert 2 * 2048 * 5120 * 2560 == up["flops"]
    assert ["all_reduce", ["cols"], 2048 * 5120 * 2, "backward"] == [
        up["collectives"][0][key] for key in ("kind", "axes", "bytes", "direction")
    ]
    assert 40 == up["count"]
    head = op(found, "head")
    assert {"hidden": 5120, "vocabulary": 6400} == head["operands"][1]["local_shape"]
    assert any("51,200" in note for note in found["notes"])


def test_the_totals_count_repeated_layers(dtsim: Dtsim) -> None:
    found = answer(dtsim, *CONTRACT)
    totals = found["totals"]
    sums = {key: sum(one["count"] * one[key] for one in found["ops"]) for key in ("flops", "backward_flops")}
    assert sums == {key: totals[key] for key in sums}
    assert totals["sent_bytes"] == sum(
        one["count"] * c["sent_bytes"] for one in found["ops"] for c in one["collectives"]
    )


def test_other_names_of_dimensions_mean_the_same(dtsim: Dtsim) -> None:
    one = answer(dtsim, "gpt2_124m", "--mesh", "a=2,b=2", "--map", "batch=a", "--map", "ffn=b", "--map", "vocabulary=b")
    other = answer(
        dtsim, "gpt2_124m", "--mesh", "a=2,b=2", "--map", "batch_size=a", "--map", "d_ff=b", "--map", "vocab=b"
    )
    assert one == other


def test_seconds_are_those_of_the_collective_alone(dtsim: Dtsim) -> None:
    found = answer(dtsim, *CONTRACT, "--cluster", "dgx_a100")
    down = op(found, "mlp down")["collectives"][0]
    asked = ("all_reduce", "--size", f"{int(down['bytes'])} B", "--cluster", "dgx_a100", "--ranks", "8", "--json")
    code, text, _ = dtsim("collective", *asked)
    assert (0, json.loads(text)["time_s"]["value"]) == (code, down["time_s"])
    assert found["totals"]["seconds"] == pytest.approx(
        found["totals"]["compute_s"] + found["totals"]["communication_s"]
    )


def test_it_prints_operation_by_operation(dtsim: Dtsim) -> None:
    code, text, _ = dtsim("layout", *CONTRACT, "--cluster", "dgx_a100")
    assert 0 == code
    for words in (
        "layer, 40 times",
        "mlp down",
        "1x2048x2560 2560x5120 -> 1x2048x5120",
        "forward all_reduce",
        "20 MiB",
    ):
        assert words in text


def test_megatron_is_chosen_from_its_weights_and_stands_beside_what_propagates(dtsim: Dtsim) -> None:
    by_hand = answer(dtsim, *CONTRACT)
    found = answer(dtsim, *CONTRACT, "--choose")
    assert by_hand["totals"] == found["totals"] == found["chosen"]["propagated"]["totals"]
    assert by_hand["ops"] == found["ops"]
    assert {"cols": "ffn"} == found["chosen"]["given"]["mlp up weight"]
    assert {"rows": "batch"} == found["chosen"]["found"]["attention residual output"]
    # 64 ranks: in each of 8 columns' groups 2 (8-1) bytes of an all_reduce per byte, twice a layer and once behind the embedding
    stream = 8 * 2048 * 5120 * 2
    assert (2 * 40 + 1) * 2 * 7 * stream == found["chosen"]["boxing_bytes"]


def test_one_weight_is_enough_to_choose_from(dtsim: Dtsim) -> None:
    few = ("gpt2_124m", "--mesh", "rows=2,cols=2", "--map", "batch=rows", "--map", "mlp up weight.ffn=cols", "--choose")
    found = answer(dtsim, *few)
    assert {"rows": "batch", "cols": "ffn"} == op(found, "mlp down")["along"]
    assert {"ffn": 3072, "hidden": 768} == op(found, "mlp down")["operands"][1]["local_shape"]  # not given: whole
    code, text, _ = dtsim("layout", *few)
    assert 0 == code
    assert "moved over all ranks forward: 72 MiB, as propagated 72 MiB" in text
    alone = answer(dtsim, "gpt2_124m", "--mesh", "cols=2", "--choose")
    assert (0.0, {}) == (alone["chosen"]["boxing_bytes"], alone["chosen"]["found"])


def test_experts_are_chosen_to_meet_their_rows_where_they_are(dtsim: Dtsim) -> None:
    found = answer(
        dtsim, "mixtral_8x7b", "--mesh", "rows=2,cols=4", "--map", "batch=rows", "--map", "experts=cols", "--choose"
    )
    assert {"rows": "expert_rows", "cols": "expert_rows"} == op(found, "expert up")["along"]
    kinds = {(c["kind"], *c["axes"]) for one in found["ops"] for c in one["collectives"] if c["direction"] == "forward"}
    assert ("all_to_all", "cols") in kinds
    assert found["chosen"]["boxing_bytes"] < found["chosen"]["propagated"]["boxing_bytes"]


def test_a_config_of_another_program_is_a_model(dtsim: Dtsim, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                "hidden_size": 512,
                "intermediate_size": 2048,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "num_hidden_layers": 3,
                "vocab_size": 32000,
                "max_position_embeddings": 1024,
                "hidden_act": "silu",
                "rms_norm_eps": 1e-5,
                "tie_word_embeddings": False,
                "torch_dtype": "bfloat16",
            }
        )
    )
    found = answer(dtsim, str(config), "--mesh", "cols=4", "--map", "heads=cols", "--map", "ffn=cols")
    assert {"ffn": 512, "hidden": 512} == op(found, "mlp down")["operands"][1]["local_shape"]
    assert 3 == op(found, "mlp down")["count"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--mesh rows", "--mesh: expected NAME=N"),
        ("--mesh rows=2,rows=4", "twice"),
        ("--mesh rows=0", "--mesh: axis 'rows' has a whole number of ranks, 1 or more, got '0'"),
        ("--mesh rows=1e3", "--mesh: axis 'rows' has a whole number of ranks, 1 or more, got '1e3'"),
        ("--mesh tensor=99999999999", "--mesh: a mesh has at most 10,000,000 ranks, got tensor=99999999999"),
        ("--mesh rows=99999999,cols=999", "at most"),
        ("--mesh cols=2 --map ffn", "--map: expected DIM=NAME"),
        ("--mesh cols=2 --map ffn=rows", "no mesh axis 'rows'"),
        ("--mesh cols=2 --map fnn=cols", "Did you mean 'ffn'?"),
        ("--mesh cols=2 --map experts=cols", "no dimension of this model 'experts'"),
        ("--mesh cols=2 --map ffn=cols --map ffn=cols", "twice"),
        ("--mesh cols=2 --map ffn=cols --map hidden=cols", "an axis divides one dimension of a tensor"),
        ("--mesh cols=5 --map heads=cols", "Nearest: 4 ranks"),
        ("--mesh cols=2 --map batch=cols --batch 3", "batch = 3"),
        ("--mesh cols=2 --batch 0", "--batch: expected a whole number"),
        ("--mesh cols=2 --map ffn=cols --cluster no_such", "no_such"),
        ("--mesh cols=4096 --map batch=cols --cluster dgx_a100", "4096 ranks"),
        ("--mesh cols=2 --map ffn=cols --choose --propagate", "--choose stands beside what --propagate finds"),
        ("--mesh tensor=2 --compare megatron,summa_2d --choose", "takes neither --propagate nor --compare"),
        ("--mesh tensor=2 --layout megatron --choose", "says what every operation divides"),
        ("--mesh cols=5 --map heads=cols --choose", "Nearest: 4 ranks"),
    ],
)
def test_what_cannot_be_is_refused_in_one_message(dtsim: Dtsim, words: str, said: str) -> None:
    code, text, error = dtsim("layout", "gpt2_124m", *words.split())
    assert (2, "") == (code, text)
    assert said in error
