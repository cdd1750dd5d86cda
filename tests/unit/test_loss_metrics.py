"""Training metrics that evaluate a microbatch's loss again: kernels of the head's backward, as often as the profile says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lowered import lowered, workload
from tests.profiles import profile


def moved(framework: str) -> tuple[float, int]:
    """Bytes per logit and launches of the metrics in the head's backward."""
    program = lowered(workload("gpt2_355m", 8, 1024), 8, framework=framework)
    tables = {id(t): t for b in program.blocks for s in b.segments for t, _ in s.pieces if t.name == "head backward"}
    (head,) = tables.values()
    rows = [i for i, label in enumerate(head.label) if label == "training metrics"]
    logits = 1024 * program_vocabulary(framework)
    return sum(head.read[i] + head.written[i] for i in rows) / logits, sum(int(head.launches[i]) for i in rows)


def program_vocabulary(framework: str) -> int:
    program = lowered(workload("gpt2_355m", 8, 1024), 8, framework=framework)
    head = next(
        t for b in program.blocks for s in b.segments for t, _ in s.pieces if t.name == "head forward" and len(t) > 1
    )
    return int(head.shape[list(head.label).index("head")][2])


def test_each_metric_casts_the_logits_and_writes_their_log_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = profile(tmp_path, "one_metric", "llm_foundry", loss_metrics=1)
    none = profile(tmp_path, "no_metric", "llm_foundry", loss_metrics=0)
    assert (moved(none), moved(one)) == ((0.0, 0), (14.0, 6))
    assert moved("llm_foundry") == (28.0, 12)
