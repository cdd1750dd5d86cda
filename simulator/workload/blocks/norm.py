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

On a stream that is fp32 (autocast) the result is, too, and each product that reads it casts it for itself, backward the gradients are
widened and added up; compiled, one kernel writes it in 16 bits.  Plain operations lose their own casts: 16, 12 and 56, 36.

One kernel on a residual stream that is cast to fp32 before: forward reads e, 4 and writes 4, e; backward reads e, 4 and writes 4, and
the cast of the gradient reads 4 and writes e.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.units import FP32
from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Keep, Moves, Tensor

__all__ = ["norm", "norms"]


def norm(
    g: LayerBuilder, label: str, x: Tensor, cheap: bool | None = None, readers: int = 1, whole: bool = False
) -> Tensor:
    """Add a norm over the last dimension; return its output.

    Args:
        cheap: see `Keep`.
        readers: products that read it.
        whole: whether every tensor-parallel rank keeps what it keeps of all tokens.
    """
    return norms(g, label, (x,), x.dims, (x.dims[-1],), cheap, readers, whole)[0]


def norms(
    g: LayerBuilder,
    label: str,
    given: tuple[Tensor, ...],
    dims: tuple[Dim, ...],
    scale: tuple[Dim, ...],
    cheap: bool | None = None,
    readers: int = 1,
    whole: bool = False,
) -> tuple[Tensor, ...]:
    """Add the norms of several tensors, a kernel each; return their outputs.

    Args:
        dims: of all of them together.
        scale: of the scales (and, of a LayerNorm, of the shifts too).
    """
    e, style, layer_norm = g.e, g.style, g.m.norm == "layer_norm"
    fused = style.fused_norm or layer_norm
    stream = given[0].element > e  # a wider one, whose norm is as wide
    wide = stream or (fused and style.norms_in_fp32 and e < FP32)
    cast = FP32 if wide else 0.0
    casts = readers if stream and not style.fused_residual else 0
    moved = _moves(dims, e, fused, cast, stream or (not fused and e == FP32), casts)
    if fused and style.norm_sums_apart:
        moved = replace(moved, sums_read=2 * cast if stream else e + (cast or e))
    # plain operations read its input once: their backward needs the fp32 copy, and the 16-bit result that the weight scales
    plain = not fused or (style.keeps_inner_results and not layer_norm)
    copies = 0.0 if not plain else FP32 if stream else FP32 + e
    if fused and copies:  # written, and read again, in passing
        moved = replace(moved, written=moved.written + copies, backward_read=moved.backward_read + copies)
    copied = plain and not stream
    kept = [
        Keep(
            tensor=given[0].view(*dims), name=f"{label} input", element=cast or e, cheap=cheap, idle=copied, whole=whole
        )
    ]
    outputs = tuple(replace(t, name=f"{label} output of {t.name}", element=e) for t in given)
    beside = e * max(0, casts - 1) + copies
    inner = (g.tensor(f"{label} in fp32", *given[0].dims, element=beside),) if beside else ()
    again = tuple(t.name for t in (*outputs, *inner))
    apart = wide and not stream
    widens = e < FP32 and not stream
    launches, backward = ((2 if apart else 1), (3 if apart else 2)) if fused else (8, 17) if widens else (6, 15)
    g.kernel(
        label,
        given,
        (*outputs, *inner),
        moved,
        weights=tuple(
            g.weight(f"{label} {what}", *scale, role="vector") for what in ("scale", "shift")[: 1 + layer_norm]
        ),
        keeps=(*kept, *(Keep(tensor=t.view(*dims), whole=whole) for t in inner)),
        again=again,
        role="norm",
        reduces=(given[0].dims[-1],),
        sums=1 + layer_norm,
        access="plain" if not fused else "norm" if style.norm_sums_apart else "",
        launches=len(given) * launches + casts,
        backward_launches=len(given) * backward + max(0, 2 * casts - 1),
    )
    return outputs


def _moves(dims: tuple[Dim, ...], e: float, fused: bool, cast: float, stream: bool, casts: int) -> Moves:
    """Bytes of a norm.

    Args:
        cast: of a number in fp32, where it is computed from an fp32 stream or a copy; `stream`: the former.
        casts: kernels that cast the result, one for each product that reads it; their gradients are widened and added up.
    """
    if not stream:
        read, written, back_read, back_written = (
            (e + cast, e + cast, 2 * e + (2 * FP32 - e if cast else 0.0), e + cast)
            if fused
            else (2 * e + 16, 2 * e + 12, 5 * e + 44, 3 * e + 32)
        )
    else:
        read, written, back_read, back_written = (
            (cast, cast if casts else e, cast + (cast if casts else e), cast) if fused else (16.0, 12.0, 56.0, 36.0)
        )
        sums = max(0, casts - 1)
        read, written = read + casts * cast, written + casts * e
        back_read, back_written = back_read + casts * e + 2 * sums * cast, back_written + (casts + sums) * cast
    return Moves(dims=dims, read=read, written=written, backward_read=back_read, backward_written=back_written)
