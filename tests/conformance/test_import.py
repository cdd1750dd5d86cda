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
