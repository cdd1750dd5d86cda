"""A layer as a graph: tensors of named dimensions, and the operations that read and write them.

    Dim      a name and a size: batch, sequence, hidden, heads, ffn, vocabulary, experts, ...
    Tensor   a name, dimensions, bytes per element, a role
    Op       what is computed: a product (its batch, m, n, k follow from the dimensions of its tensors, as in einsum), attention, a
             kernel that moves bytes, a look-up, an exchange of rows, or a wait of the host
    Keep     a tensor that an operation's backward reads, so that it stands from forward to backward

Sizes are those of one microbatch on one model replica.  Tensors are told apart by their names; labels of operations are for people,
and nothing may depend on them.  `verify.py` says what a graph must keep, `operators.py` what runs on a GPU for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

__all__ = [
    "Attention",
    "Convolution",
    "Dim",
    "Exchange",
    "HeadSwap",
    "HostWait",
    "Keep",
    "Kernel",
    "LayerGraph",
    "Lookup",
    "Measured",
    "Moves",
    "Op",
    "Product",
    "Tensor",
    "count",
    "einsum",
]


class Dim(NamedTuple):
    """One dimension of a tensor.

    Args:
        name: which; in a product equal names are summed over, or run along together.
        size: how many.
        serves: name of the dimension of another operand of which several share one of this (key/value heads serve heads).
        joins: dimensions that stand side by side in it (queries' and keys' heads), whose sizes it sums.
    """

    name: str
    size: int
    serves: str = ""
    joins: tuple[Dim, ...] = ()


def count(dims: tuple[Dim, ...]) -> int:
    """Elements of a tensor of these dimensions.

    >>> count((Dim("sequence", 3), Dim("hidden", 4)))
    12
    """
    return math.prod(d.size for d in dims)


@dataclass(frozen=True, slots=True)
class Tensor:
    """Numbers that one operation writes and others read.

    Args:
        name: unique in its graph.
        dims: its dimensions.
        element: bytes of an element.
        role: activation, stream (it crosses pipeline boundaries), statistics, mask or logits; of what the model owns weight
            (a matrix), bias or vector (any other).
        frozen: of what the model owns: whether it has no gradient and is never updated.
        turns: parts in which it is made and read, each in the place of the one before; of more than one nobody keeps it, and what makes
            it runs again in the backward.
    """

    name: str
    dims: tuple[Dim, ...]
    element: float
    role: str = "activation"
    frozen: bool = False
    turns: int = 1

    @property
    def elements(self) -> int:
        """How many elements."""
        return count(self.dims)

    @property
    def bytes(self) -> float:
        """Its size [B]."""
        return self.elements * self.element

    @property
    def standing(self) -> float:
        """What stands of it at once [B]."""
        return self.bytes / self.turns

    def view(self, *dims: Dim) -> Tensor:
        """The same tensor as an operation sees it: in other dimensions, a part of it, or with what other ranks hold too."""
        return replace(self, dims=dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """A tensor kept from forward to backward because an operation's backward reads it.

    What can be derived is: a tensor is made again with the core of attention where one of its operations made it and another keeps it,
    and under per-operator recompute where what made it runs again.  The flags say so where a framework does otherwise.

    Args:
        tensor: which.
        name: what memory reports call it; "" = the tensor's own name.
        element: bytes of an element as it is kept, such as of a quantised copy; None = the tensor's own.
        whole: kept in full by every tensor-parallel rank.
        gathered: what ranks gather of a tensor that another operation keeps: all of it, and nothing where none of them lacks a part.
        droppable: whether selective recompute makes it again; None = derived.
        cheap: whether per-operator recompute makes it again; None = derived.
        idle: kept only under per-operator recompute: outputs of every second product, though nothing reads them, and what was sent.
        sent: whether it is kept because it came from other ranks; where none sends, per-operator recompute makes it again.
        share: of it that is kept.
        joined: of all rows that tensor-parallel ranks gather for the product beside an adapter.
        role: "operand" of attention, which compilers know by name; "statistics" of its softmax.
    """

    tensor: Tensor
    name: str = ""
    element: float | None = None
    whole: bool = False
    gathered: bool = False
    droppable: bool | None = None
    cheap: bool | None = None
    idle: bool = False
    sent: bool = False
    role: str = ""
    share: float = 1.0
    joined: bool = False

    @property
    def bytes(self) -> float:
        """Its size as it is kept [B]."""
        return self.tensor.elements * (self.tensor.element if self.element is None else self.element) * self.share


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Bytes that a kernel moves per element of some dimensions, forward and backward."""

    dims: tuple[Dim, ...]
    read: float = 0.0
    written: float = 0.0
    backward_read: float = 0.0
    backward_written: float = 0.0
    sums_read: float = 0.0
    """Read once more backward by a kernel of its own, for sums over tokens (a norm's weights)."""

    share: float = 1.0
    """Of the elements that it touches."""

    joined: bool = False
    """Of all rows that tensor-parallel ranks have gathered for a product beside, not of each one's own."""

    @classmethod
    def copies(cls, dims: tuple[Dim, ...], forward: float, backward: float) -> Moves:
        """Return what copies move that read and write so many bytes of an element."""
        return cls(dims=dims, read=forward, written=forward, backward_read=backward, backward_written=backward)

    def bytes(self, what: str) -> float:
        """All bytes of one of its fields."""
        return count(self.dims) * float(getattr(self, what)) * self.share


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation.

    Args:
        label: name within its layer, for people.
        inputs, outputs: activations that it reads and writes.
        weights: what it owns of the model.
        keeps: what its backward reads.
        again: names of the outputs that per-operator recompute makes again; the others are kept by those who read them.
        role: what it is to others: "norm", "softmax", "residual", "projection", "mlp_up", "mlp_down", "loss".
        modules: modules of selective recompute that it is part of (Megatron-LM's --recompute-modules; "core_attn").
        captured: the part of a layer with which a CUDA graph captures it: attn, mlp, moe_router, moe_preprocess or moe.
        absorbed: the kernel that does its work where a framework has it: "exchange" (of rows), "grouped" (products of experts).
        launches, backward_launches: kernels started on the host; `per_expert` more forward, and twice as many backward, for each
            expert of the rank.
        looped: whether it runs once for each expert of the rank, so that its launches are those of one.
        remade: whether its backward and those of its readers begin with running it again, as nobody keeps what it makes.
    """

    label: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weights: tuple[Tensor, ...] = ()
    keeps: tuple[Keep, ...] = ()
    again: tuple[str, ...] = ()
    role: str = ""
    modules: tuple[str, ...] = ()
    captured: str = ""
    absorbed: str = ""
    launches: int = 1
    backward_launches: int = 1
    per_expert: int = 0
    looped: bool = False
    remade: bool = False

    @property
    def runs_twice(self) -> bool:
        """Whether it runs again in every backward pass: it is remade, or makes something in turns."""
        return self.remade or any(t.turns > 1 for t in self.outputs)

    @property
    def frozen(self) -> bool:
        """Whether it owns weights, none of which is trained."""
        return bool(self.weights) and all(w.frozen for w in self.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product(Op):
    """Products of an activation with weights, one output each, or of two activations.

    Args:
        kernels: how many of the weights go into each separate product; () = all into one.
        reads_keys: whether the right operand are keys or values, of which other ranks may hold some (context parallelism).
        fixed: whether its left operand is a mask, which has no gradient.
        gathers: whether its divided output is gathered again.
        sums_bias: whether the gradient of its bias is a sum over rows that costs time.
        quantised: whether a run in 8 or 4 bits makes it so.
        adapted: whether an adapter reads its input, too, wide and gathered.
        joined: whether it is an adapter's that reads what is gathered so.
    """

    kernels: tuple[int, ...] = ()
    reads_keys: bool = False
    fixed: bool = False
    gathers: bool = False
    sums_bias: bool = True
    quantised: bool = True
    adapted: bool = False
    joined: bool = False

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        """Its weights, biases left out."""
        return tuple(w for w in self.weights if w.role == "weight")

    @property
    def pairs(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(left operand, right operand, output) of each product."""
        right = self.matrices or self.inputs[1:2]
        return ((self.inputs[0], r, out) for r, out in zip(right, self.outputs, strict=False))

    @property
    def makes_scores(self) -> bool:
        """Whether keys, of those it reads, are a dimension of its result, which sums over them where it reads values."""
        return self.reads_keys and self.inputs[1].dims[1] in self.outputs[0].dims

    @property
    def of_experts(self) -> bool:
        """Whether each row of the left operand meets one of several weights: a dimension that only the right operand has."""
        left, right, out = next(self.pairs)
        return bool(
            {d.serves or d.name for d in right.dims} - {d.serves or d.name for t in (left, out) for d in t.dims}
        )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, m, n, k) of all products side by side."""
        shapes = [einsum(*pair) for pair in self.pairs]
        batch, m, _, k = shapes[0]
        return batch, m, sum(s[2] for s in shapes), k

    @property
    def columns(self) -> tuple[int, ...]:
        """Columns of each separate product; () = one product."""
        widths = [einsum(*pair)[2] for pair in self.pairs]
        ends = [sum(self.kernels[: i + 1]) for i in range(len(self.kernels))]
        return tuple(sum(widths[end - n : end]) for n, end in zip(self.kernels, ends, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution(Product):
    """A product whose left operand are windows of a tensor, which no kernel writes down (implicit GEMM: Chetlur et al., cuDNN, arXiv
    1410.0759, section 3): rows are positions, the depth is what a window holds.  `fixed` where its input is data.

    Args:
        taps: positions of a window.
        shared: windows in which a position of the input stands, on average: taps over the strides.
        saved: how many times fewer multiplications it takes over transformed tiles.
    """

    taps: int
    shared: float
    saved: float = 1.0


def einsum(left: Tensor, right: Tensor, out: Tensor) -> tuple[int, int, int, int]:
    """(batch, m, n, k) of a product: dimensions of all three run along, of both operands alone are summed over.

    A dimension that only the right operand has is one of experts: each row of the left one meets one of them.

    >>> b, s, h, f = Dim("batch", 2), Dim("sequence", 8), Dim("hidden", 4), Dim("ffn", 16)
    >>> einsum(Tensor("x", (b, s, h), 2.0), Tensor("w", (h, f), 2.0, "weight"), Tensor("y", (b, s, f), 2.0))
    (1, 16, 16, 4)
    """
    of_left, of_right, of_out = ({d.serves or d.name for d in t.dims} for t in (left, right, out))
    batch = m = n = k = 1
    for d in left.dims:
        name = d.serves or d.name
        if name in of_out and name in of_right:
            batch *= d.size
        elif name in of_out:
            m *= d.size
        else:
            k *= d.size
    for d in right.dims:
        name = d.serves or d.name
        if name not in of_left and name in of_out:
            n *= d.size
        elif name not in of_left:
            batch *= d.size
    return batch, m, n, k


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Op):
    """Fused attention between inputs (queries, keys, values), the scores never in memory.

    Args:
        keys: keys that each sequence of queries meets, those of other ranks and of earlier slices too.
        kernel: its name.
        causal, window, chunked: which keys a query sees: none later; the last `window`, or those of its block of that size.
    """

    keys: int
    kernel: str
    causal: bool
    window: int = 0
    chunked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel(Op):
    """A kernel, or several, that moves bytes.

    Args:
        moves: what it moves; the first dimensions are those by which it is divided.
        whole: whether every tensor-parallel rank does all of it.
        access: how it walks memory (see `Operator.access`).
        sums_rows: the phase, "forward" or "backward", in which it adds rows up one by one; "" = in none.
        after_exchange: runs only where ranks share experts, behind their exchange.
        reduces: dimensions over which it finds sums or maxima.
        sums: how many sums per row over these are all that its work on a part needs of the others, backward as many; 0 = it needs more.
        crosses: whether its last input comes with columns divided over tensor-parallel ranks, whatever lies there else.
    """

    moves: tuple[Moves, ...]
    reduces: tuple[Dim, ...] = ()
    sums: int = 0
    whole: bool = False
    access: str = ""
    sums_rows: str = ""
    after_exchange: bool = False
    crosses: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup(Kernel):
    """Rows of a table, by their numbers; `by_product`: as one-hot rows times the table."""

    by_product: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSwap(Kernel):
    """Between ranks that share sequences, some tokens of all heads against all tokens of some heads, or back; what it moves are copies.

    Args:
        parts: shares of its input that go in an exchange each.
    """

    parts: tuple[float, ...] = (1.0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange(Op):
    """Rows of tokens between the ranks that share experts.

    Args:
        outward: to the experts, not back.
        copies: rows made of each token; `reach`: the share of the experts' groups that it may use.
    """

    outward: bool
    copies: int
    reach: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait(Op):
    """The host waits for something from the GPU: rows per expert (`counts`), which all ranks first tell each other, or a number.

    Args:
        read: bytes read for it, undivided.
        dims: by which they are divided.
    """

    read: float
    dims: tuple[Dim, ...]
    counts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Op):
    """What takes as long as somebody measured, whatever it is.

    Args:
        forward, backward: s of this microbatch.
    """

    forward: float
    backward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """The operations of one kind of layer, in the order in which they run.

    Args:
        kind: "embedding", "layer", "moe layer", "head", ...
        inputs: tensors that come from elsewhere, the layer's own input first.
        ops: in forward order.
        outputs: tensors that others read.
        weights: weights that were made for it.
        peers: ranks that hold the other tokens of the same sequences (context parallelism).
    """

    kind: str
    inputs: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Tensor, ...]
    weights: tuple[Tensor, ...] = field(default=())
    peers: int = 1
