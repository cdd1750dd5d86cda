"""What is done to a weight's gradient as soon as it is made.

It is added into its buffer (Megatron-LM, after a cast where both stand), or, where an update frees gradients, the first microbatch's
becomes the gradient (autograd's AccumulateGrad) and others are added to it.  DistributedDataParallel copies the sum into a bucket, and
back when it is reduced.  What FSDP reduces after every microbatch it copies to where it is reduced from, a unit at a time
(steps/carried_units.py).
"""

from __future__ import annotations

import math

from simulator.lowering.layers.division import Hops
from simulator.lowering.layers.writer import Writer

__all__ = ["accumulate"]


def accumulate(w: Writer, label: str, elements: float, made: float, scatters: Hops = ()) -> None:
    """Add what is done to a weight's gradient, of a microbatch in the mean.

    Args:
        label: of the operation.
        elements: before what scatters it.
        made: bytes of each as it is made.
    """
    ctx = w.ctx
    if ctx.copies_to_reduce:
        return
    elements /= math.prod(hop.ranks for hop in scatters)
    wide = ctx.gradient_bytes
    copied = wide if ctx.style.keeps_compute_gradients and wide > made else 0.0
    cast = 0.0 if made == wide else 1.0
    taken, added = ctx.taken, 1.0 - ctx.taken
    bucket = 2.0 * wide * ctx.bucketed
    read = added * (made + wide + copied) + taken * cast * made + bucket
    written = added * (wide + copied) + taken * cast * wide + bucket
    if not read:
        return
    w.moves(
        f"{label} gradient accumulation",
        read * elements,
        written * elements,
        launches=2 if copied or bucket else 1,
        part="weight",
    )
