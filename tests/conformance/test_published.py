"""A published run of an eager code, predicted by its profile and through a recording: both are the same code."""

from __future__ import annotations

import pytest

from tests.conformance.published import rows, twice

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("case", "apart"), [("titan-0001", 0.02), ("f8nc-0001", 0.035)])  # docs/accuracy.md says why
def test_a_profile_and_a_recording_of_the_code_predict_the_same_step(case: str, apart: float) -> None:
    pytest.importorskip("torch", reason="recording a script needs torch: nox -s capture")
    found = twice(next(row for row in rows() if row["case_id"] == case))

    assert found.recorded == pytest.approx(found.profile, rel=apart)
