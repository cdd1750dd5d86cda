"""A published run of an eager code, predicted by its profile and through a recording: both are the same code."""

from __future__ import annotations

import pytest

from tests.conformance.published import rows, twice

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("case", "apart"), [("titan-0001", 0.02), ("f8nc-0001", 0.035)])
def test_a_profile_and_a_recording_of_the_code_predict_the_same_step(case: str, apart: float) -> None:
    """They part in forward and backward, priced by how each pass walks memory (docs/behind_the_numbers.md), and nowhere else."""
    pytest.importorskip("torch", reason="recording a script needs torch: nox -s capture")
    found = twice(next(row for row in rows() if row["case_id"] == case))

    assert found.recorded == pytest.approx(found.profile, rel=apart)
    beside = {
        part: found.parts[part] / found.profile for part in found.parts.keys() - {"forward", "backward", "recompute"}
    }
    assert all(abs(share) < 0.005 for share in beside.values()), beside
