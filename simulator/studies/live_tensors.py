"""Which tensors are live at the memory peak, as data."""

from __future__ import annotations

from simulator.report.prediction import Prediction

__all__ = ["live_at_peak"]

_MOST = 12


def live_at_peak(prediction: Prediction) -> dict[str, object]:
    """Return the fullest pipeline rank, when it is fullest [s], and the largest tensors that are live then [B]."""
    memory = prediction.memory
    rank = prediction.fullest
    return {
        "pipeline_rank": prediction.ranks[rank].pipeline_rank if prediction.ranks else rank,
        "time_s": float(memory.time[rank]),
        "tensors": [
            {"name": s.name, "category": s.category, "count": s.count, "bytes": s.bytes}
            for s in memory.live(rank)[:_MOST]
        ],
    }
