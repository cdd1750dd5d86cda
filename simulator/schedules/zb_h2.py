"""ZB-H2: ZB-H1 with a longer warm-up, which fills the bubble at the start too, for nearly twice the activations."""

from __future__ import annotations

from simulator.schedules.zb_h1 import ZBH1

__all__ = ["ZBH2"]


class ZBH2(ZBH1):
    """Rank i runs 2(p-i)-1 forwards ahead; its weight gradients lag 2i input gradients. No rank idles between its first and last action."""

    name = "zb_h2"
    source = "Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, hand-made schedule ZB-H2"
    depth = 2
