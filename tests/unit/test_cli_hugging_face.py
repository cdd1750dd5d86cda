"""A Hugging Face config.json becomes a model, exactly; what cannot be read is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import SpecError
from simulator.specs import validate_spec
from simulator.studies.hugging_face import model_from_config
from simulator.workload.model import Model, load_model

LLAMA3 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}


def read(tmp_path: Path, config: Any) -> Model:
    path = tmp_path / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return validate_spec(model_from_config(path), Model, "test")


@pytest.mark.parametrize(("config", "name"), [(LLAMA3, "llama3_8b"), (GPT2, "gpt2_124m")])
def test_parameters_are_those_of_the_shipped_model(tmp_path: Path, config: dict[str, Any], name: str) -> None:
    assert load_model(name).parameters == read(tmp_path, config).parameters


def test_qwen2_has_biases_on_query_key_and_value_only(tmp_path: Path) -> None:
    qwen = read(tmp_path, LLAMA3 | {"model_type": "qwen2"})
    per_layer = (32 + 2 * 8) * 128
    assert load_model("llama3_8b").parameters + 32 * per_layer == qwen.parameters
    assert not qwen.linear_bias


def test_head_dim_may_differ_from_hidden_over_heads(tmp_path: Path) -> None:
    assert 96 == read(tmp_path, LLAMA3 | {"model_type": "mistral", "head_dim": 96}).head_dim


def test_a_sliding_window_ends_the_context(tmp_path: Path) -> None:
    mistral = LLAMA3 | {"model_type": "mistral", "max_position_embeddings": 32768, "sliding_window": 4096}
    assert 4096 == read(tmp_path, mistral).sequence_length
    assert 32768 == read(tmp_path, mistral | {"sliding_window": None}).sequence_length
    assert 32768 == read(tmp_path, mistral | {"model_type": "qwen2", "use_sliding_window": False}).sequence_length


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA3 | {"model_type": "mamba"}, "known: gpt2, llama, mistral, qwen2"),
        ({}, "model_type"),
        ([1, 2], "one JSON object"),
        ('{"model_type": ', "no JSON"),
        ("[" * 100_000, "no JSON"),
        (LLAMA3 | {"hidden_size": 0}, "hidden_size"),
        (LLAMA3 | {"hidden_size": "4096"}, "hidden_size"),
        (LLAMA3 | {"num_hidden_layers": 10**9}, "layers"),
        (LLAMA3 | {"num_hidden_layers": True}, "num_hidden_layers"),
        (LLAMA3 | {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({k: v for k, v in LLAMA3.items() if k != "vocab_size"}, "vocab_size"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, config: Any, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        read(tmp_path, config)
    assert said in str(refused.value)


def test_a_directory_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(SpecError, match=str(path)):
            model_from_config(path)
