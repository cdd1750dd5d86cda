"""What the authors of PipeDream's profiles sum them up to (repository msr-fiddle/pipedream)."""

from __future__ import annotations

__all__ = ["PIPEDREAM_SUMS"]

PIPEDREAM_SUMS = [
    ("vgg16", 251.9, 438.6, 553.4),
    ("resnet101", 207.7, 213.8, 178.2),
    ("densenet121", 186.5, 148.8, 31.9),
    ("gnmt_large", 182.6, 337.9, 1110.9),
]
"""Graph, forward and backward [ms], weights [MB]."""
