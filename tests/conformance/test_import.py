"""`dtsim import torch`: the model that a function makes, as a model file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from simulator.capture.child import capture
from simulator.capture.model import model_fields
from simulator.errors import SpecError
from simulator.workload.model import load_model

pytest.importorskip("torch", reason="recording a model needs torch: nox -s capture")
pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parent / "scripts"


def test_a_model_that_a_function_makes_becomes_a_model_file_with_as_many_parameters(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    words = [sys.executable, "-m", "simulator", "import", "torch", f"{SCRIPTS / 'llama.py'}:build", "-o", str(path)]
    subprocess.run(words, check=True)
    model = load_model(str(path))

    assert (4, 1024, 16, 4, 2816, 32000) == (
        model.layers, model.hidden, model.heads, model.kv_heads, model.ffn, model.vocabulary,
    )  # fmt: skip
    assert model.gated_mlp
    assert not model.tied_embeddings


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("Llama", "num_key_value_heads=4", {"norm": "rms_norm", "kv_heads": 4, "gated_mlp": True}),
        ("Qwen3", "num_key_value_heads=4, head_dim=128", {"qk_norm": True, "head_dim": 128}),
        ("Qwen2", "num_key_value_heads=4", {"qkv_bias": True, "linear_bias": False}),
        (
            "GPT2",
            "n_embd=1024, n_head=16, n_layer=2",
            {"positions": "learned", "tied_embeddings": True, "linear_bias": True},
        ),
    ],
)
def test_models_of_transformers_become_model_files(
    kind: str, more: str, expected: dict[str, object], tmp_path: Path
) -> None:
    """Also with dropout, as GPT-2 has it."""
    pytest.importorskip("transformers", reason="the witness is transformers: nox -s capture")
    script = tmp_path / "net.py"
    shape = (
        "hidden_size=1024, num_hidden_layers=2, num_attention_heads=16, intermediate_size=2816, "
        if kind != "GPT2"
        else ""
    )
    script.write_text(
        "import torch, transformers\ndef build():\n"
        f"    config = transformers.{kind}Config(vocab_size=32000, {shape}{more})\n"
        "    return transformers.AutoModelForCausalLM.from_config(config), torch.zeros(1, 512, dtype=torch.long)\n"
    )
    fields, _ = model_fields(capture(f"{script}:build", 1, builds=True), "net")

    assert expected.items() <= fields.items()
    assert (2, 1024, 16, 32000) == tuple(fields[key] for key in ("layers", "hidden", "heads", "vocabulary"))


def test_a_model_whose_weights_are_not_all_known_is_refused_with_their_names(tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    path = SCRIPTS / "llama.py"
    script.write_text(
        f"import sys, torch\nsys.path.insert(0, {str(path.parent)!r})\nimport llama\ndef build():\n"
        "    model, tokens = llama.build()\n"
        "    model.output = torch.nn.Linear(1024, 32000)\n"
        "    return model, tokens\n"
    )
    with pytest.raises(SpecError, match=r"\(\+32,000\).*output.bias 32000"):
        model_fields(capture(f"{script}:build", 1, builds=True), "net")


def test_a_model_of_no_known_family_is_refused_with_what_was_found(tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text("import torch\ndef build():\n    return torch.nn.Linear(8, 8), torch.zeros(4, 8)\n")
    with pytest.raises(SpecError, match="no embedding"):
        model_fields(capture(f"{script}:build", 1, builds=True), "net")


def test_a_function_that_makes_no_model_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text("def build():\n    return 3\n")
    with pytest.raises(SpecError, match="makes no model"):
        capture(f"{script}:build", 1, builds=True)
