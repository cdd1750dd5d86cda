"""LayerNorm and RMSNorm.

    forward reads x, writes y; backward reads x and dy, writes dx

LayerNorm is one kernel in every framework.  An RMSNorm written in plain tensor operations (not fused) computes in fp32, each
operation a pass: cast, square, mean, scale, cast, weight forward; the same backward with the sums for the scale, e = bytes per element:

    forward   reads  x e, 4, 4, 4, 4, e  = 2 e + 16     writes 4, 4, 4, e, e   = 2 e + 12
    backward  product with the weight     reads e, 2 e, e (sum over tokens)     writes e, e
              cast                        reads e                               writes 4
              product with the scale      reads 4, 8, 4 (sum over a row)        writes 4, 4
              mean, square                reads 4, 4, 8                         writes 4, 4, 4, 4
              sum of both ways, cast      reads 8, 4                            writes 4, e
              in all                      reads 5 e + 44                        writes 3 e + 32

The sums over tokens of a LayerNorm's backward may be a kernel of its own, which reads x and dy again (PyTorch's layer_norm_kernel.cu
and apex' layer_norm_cuda_kernel.cu: one kernel for gammas and betas, one for dx; Transformer Engine's and apex' FastLayerNorm add them
up in passing).

One kernel on a residual stream that is cast to fp32 before: forward reads e, 4 and writes 4, e; backward reads e, 4 and writes 4, and
the cast of the gradient reads 4 and writes e.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Keep, Kernel, Moves, Tensor

__all__ = ["norm", "norms"]

_FP32 = 4.0
"""Bytes of a number in fp32."""


def norm(g: LayerBuilder, label: str, x: Tensor, cheap: bool | None = None) -> Tensor:
    """Add a norm over the last dimension; return its output.

    Args:
        cheap: see `Keep`.
    """
    return norms(g, label, (x,), x.dims, (x.dims[-1],), cheap)[0]


def norms(
    g: LayerBuilder,
    label: str,
    given: tuple[Tensor, ...],
    dims: tuple[Dim, ...],
    scale: tuple[Dim, ...],
    cheap: bool | None = None,
) -> tuple[Tensor, ...]:
    """Add the norms of several tensors, a kernel each; return their outputs.

    Args:
        dims: of all of them together.
        scale: of the scales (and, of a LayerNorm, of the shifts too).
    """
    e, style, layer_norm = g.e, g.style, g.m.norm == "layer_norm"
    fused = style.fused_norm or layer_norm
    wide = fused and style.norms_in_fp32 and e < _FP32
    cast = _FP32 if wide else 0.0
    read, written, back_read, back_written = (
        (e + cast, e + cast, 2 * e + (2 * _FP32 - e if wide else 0.0), e + cast)
        if fused
        else (2 * e + 16, 2 * e + 12, 5 * e + 44, 3 * e + 32)
    )
    moved = Moves(
        dims=dims,
        read=read,
        written=written,
        backward_read=back_read,
        backward_written=back_written,
        sums_read=e + (cast or e) if fused and style.norm_sums_apart else 0.0,
    )
    # plain operations read its input once: their backward needs the fp32 copy, and the 16-bit result that the weight scales
    kept = [Keep(tensor=given[0].view(*dims), name=f"{label} input", element=cast or e, cheap=cheap, idle=not fused)]
    outputs = tuple(replace(t, name=f"{label} output of {t.name}") for t in given)
    inner = () if fused else (g.tensor(f"{label} in fp32", *given[0].dims, element=4 + e),)
    again = tuple(t.name for t in (*outputs, *inner))
    launches, backward = ((2 if wide else 1), (3 if wide else 2)) if fused else (7, 17)
    g.add(
        Kernel(
            label=label,
            inputs=given,
            outputs=(*outputs, *inner),
            weights=tuple(
                g.weight(f"{label} {what}", *scale, role="vector") for what in ("scale", "shift")[: 1 + layer_norm]
            ),
            keeps=(*kept, *(Keep(tensor=t.view(*dims)) for t in inner)),
            again=again,
            role="norm",
            moves=(moved,),
            reduces=(given[0].dims[-1],),
            sums=1 + layer_norm,
            access="" if fused else "plain",
            launches=len(given) * launches,
            backward_launches=len(given) * backward,
        )
    )
    return outputs
