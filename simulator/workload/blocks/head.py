"""The head: projection to the vocabulary, cross-entropy on the logits, and training metrics."""

from __future__ import annotations

from simulator.units import FP32
from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Keep, Kernel, Moves, Tensor
from simulator.workload.operator import KernelStyle

__all__ = ["head"]


def head(g: LayerBuilder, x: Tensor, bias: bool = False, share: float = 1.0) -> Tensor:
    """Add the product with the vocabulary, the loss and the metrics; return the loss.

    Args:
        x: normed activations, of all tokens or (without a sequence) of one token of each sequence.
        bias: whether every word has one; its gradient costs nothing beside the product's.
        share: of all tokens that have logits.
    """
    logits = g.tensor("logits", *x.dims[:-1], g.vocabulary, role="logits")
    g.linear(
        "head",
        x,
        (logits,),
        (g.hidden,),
        keep=Keep(tensor=x, name="head input", element=g.e, whole=g.style.keeps_gathered_inputs),
        bias=False,
        quantised=False,
        vectors=(g.weight("head bias", Dim("vocabulary", g.m.vocabulary), role="bias"),) if bias else (),
        sums_bias=False,
    )
    seen = logits.view(*g.tokens, g.vocabulary)
    loss = _loss(g, x, seen, share)
    _metrics(g, seen, share)
    return loss


def _loss(g: LayerBuilder, x: Tensor, logits: Tensor, share: float) -> Tensor:
    """Cross-entropy, on fp32 logits unless it is fused, or plain on those that the head makes."""
    style, e = g.style, g.e
    read, written, back_read, back_written, kept, launches, back_launches = _passes(style, e)
    measures = style.measures_accuracy
    if measures:  # loss; maximum twice; largest's index; subtract; exponential; sum
        read, written = read + 7.0 * e, written + 2.0 * e
    whole = style.gathers_logits
    # from the loss to its backward stand logits, or, made chunk by chunk, the gradient of the head's input
    keep = Keep(tensor=logits, element=kept, whole=whole, share=share)
    if style.loss_chunks > 1:
        keep = Keep(tensor=x.view(*g.tokens, g.hidden), name="gradient of the head's input", element=e, share=share)
    moved = Moves(
        dims=logits.dims,
        read=read,
        written=written,
        backward_read=back_read,
        backward_written=back_written,
        share=share,
    )
    out = g.tensor("losses", *logits.dims[:-1], element=4.0)
    return g.kernel(
        "cross entropy",
        (logits,),
        (out,),
        moved,
        keeps=(keep,),
        role="loss",
        reduces=(logits.dims[-1],),
        whole=whole,
        access="loss",
        launches=launches + (7 if measures else 0),
        backward_launches=back_launches,
    )


def _passes(style: KernelStyle, e: float) -> tuple[float, float, float, float, float, int, int]:
    """Bytes of a cross-entropy for each of the logits, of e bytes: read and written forward, and backward, and kept; launches of both."""
    widens = style.widens_logits and e < FP32
    if style.fused_cross_entropy:  # in fp32: maximum; exponential and sum; divide
        return (2 * e + 4.0, 8.0, 4.0, e, 4.0, 2, 1) if style.widens_fused_loss else (2 * e, 0.0, e, e, e, 2, 1)
    kept, there, back = (FP32, e, FP32) if widens else (e, 0.0, 0.0)  # a cast to fp32 and back, or none
    if style.torch_loss and style.splits_logits:
        # maximum; subtract twice; exponential; sum - zeros; exponential; product; sum; what they do to a number of each token is small
        return (
            there + 5 * kept,
            back + 3 * kept,
            4 * kept + back,
            4 * kept + there,
            kept,
            _SPLIT[0] + widens,
            _SPLIT[1] + widens,
        )
    if style.torch_loss or not style.widens_logits:
        # log_softmax, widened in registers, and the pick - zeros, the pick's and the softmax's gradient.  Its kernels read a row for
        # the maximum, for the sum and to write, and twice backward (SoftMax.cu); the rows under way are more than a cache holds
        return there + 3 * kept, back + kept, 4 * kept + back, 2 * kept + there, kept, 2 + widens, 3 + widens
    # maximum; subtract; exponential; sum; divide - backward scales the softmax and casts it back
    return e + 20.0, 16.0, 8.0, 4.0 + e, 4.0, 8, 4


_SPLIT = (24, 18)
"""Kernels of loss_parallel (torch.distributed.tensor.parallel.loss) beside its casts: mostly on a number of each token, as masks are."""


def _metrics(g: LayerBuilder, logits: Tensor, share: float) -> None:
    """Training metrics that evaluate the loss of the logits anew, after the backward and without gradients.

    Each: a cast to fp32, then log-probabilities and their pick.  torch's kernel reads a row for its maximum, for its sum and to
    write; a block of 1,024 threads per multiprocessor works on a row of some 200 kB, so that the rows under way stay in the L2
    cache and memory is read once.
    """
    times = g.style.loss_metrics
    if times:
        moved = Moves(dims=logits.dims, backward_read=times * (g.e + 4.0), backward_written=times * 8.0, share=share)
        g.add(
            Kernel(
                label="training metrics",
                inputs=(logits,),
                outputs=(),
                moves=(moved,),
                whole=g.style.gathers_logits,
                launches=0,
                backward_launches=6 * times,
            )
        )
