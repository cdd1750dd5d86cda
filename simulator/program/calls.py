"""What a row of an operator table calls, as a type of its own for each kind of kernel: prices look a kernel up by what it is.

    Product          the order of a GEMM's operands
    Convolved        of one whose operand are windows of a tensor
    AttentionCall    an attention kernel with its mask and the keys it sees
    Timed            seconds that were measured
    Traffic          how a memory-bound kernel walks memory, and whether the host waits for it
    NodeExchange     an all_to_all in which a row goes once to every node that needs it

In the text form each is one word, such as `TN`, `attention(te,causal,0,8,2048)`, `layer`, `stream+end` or `once_per_node(8,0.5)`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "ACCESSES",
    "AWAITED",
    "CALLS",
    "EXCHANGED",
    "FETCHED",
    "JOINED",
    "MASKS",
    "MOVES",
    "ORDERS",
    "STREAM",
    "SYNCHRONISED",
    "AttentionCall",
    "Call",
    "Convolved",
    "NodeExchange",
    "Product",
    "Timed",
    "Traffic",
    "read_call",
    "waits",
    "write_call",
]

ORDERS = ("TN", "NN", "NT")
"""Operands of a GEMM: TN forward, NN input gradient (and products of two activations), NT weight gradient."""
MASKS = ("causal", "full", "window", "chunk")
ACCESSES = (
    "stream", "layer", "layer backward", "norm", "norm backward", "norm sums", "gather", "exchange", "loss", "flash layout", "scores",
    "scores backward", "cast", "turned", "stack", "transposed", "plain", "strided", "atomic", "sorted",
)  # fmt: skip
"""How a kernel walks memory: long passes, a layer's small kernels (slower backward), norms that find sums over tokens apart (slower
backward), these sums, rows in another order, the same in an exchange between experts (by its library, on its stream), the separate
operations of a cross-entropy, copies that only FlashAttention's kernels need, a fused softmax over scores in memory (slower backward),
narrow copies of operands, such copies turned by a Hadamard transform, stacks of a loop's layers, transposed narrow copies, norms in
plain tensor operations, plain operations on parts of tensors, rows added to others one number at a time, or run by run of sorted
indices."""
_HOST = ("", "end", "layer", "hooks", "slices")
MOVES = ("sent", "fetched", "copied")
"""How multiprocessors exchange rows: they send them as quickly as their bytes go, fetch them from other ranks and add them up one by
one, or copy each by loads and stores of their own."""


@dataclass(frozen=True, slots=True)
class Product:
    """A GEMM: `order` is one of `ORDERS`."""

    order: str


@dataclass(frozen=True, slots=True)
class Convolved(Product):
    """A GEMM one of whose operands are windows of a tensor, read where they lie: the one with rows, of NT the one with columns.

    Args:
        shared: how often each number of the tensor stands in that operand.
        saved: how many times fewer multiplications it takes over transformed tiles of its windows (Winograd).
    """

    shared: float
    saved: float


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """An attention kernel.

    Args:
        kernel: its name.
        mask: one of `MASKS`.
        window: tokens that a query sees at most, of "window" and "chunk"; 0 else.
        kv_heads: key/value heads on this GPU.
        keys: that each sequence of queries sees.
    """

    kernel: str
    mask: str
    window: int
    kv_heads: int
    keys: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """A memory-bound kernel.

    Args:
        access: one of `ACCESSES`.
        host: "" (the host runs ahead), "end" (it waits for the end of this row), "layer" (the row moves nothing: here the host
            waits for the GPU, and the GPU for what the host does next) or "hooks" (the row moves nothing: here the host works through
            as many hooks as the row has launches, which fetch and release the weights of modules) or "slices" (likewise: it puts weights
            together from so many parts of them, each a view of its own).
    """

    access: str = "stream"
    host: str = ""


@dataclass(frozen=True, slots=True)
class Timed:
    """What somebody measured to take so long [s]: a fact of the file that says so, on whatever GPU that was."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NodeExchange:
    """An all_to_all between ranks that share experts, of which each node gets a token's row once.

    Args:
        copies: rows made of each token.
        reach: share of the groups of experts that a token may use.
        row: bytes of a row; 0 where the library that moves rows is not known, and only their bytes take time.
        multiprocessors: how many of a GPU work on the exchange.
        moved: how they do it, one of `MOVES`.
        experts: of a rank, among which the library sorts the rows that arrive, looking at each of them for every row; 0 = it does not.
    """

    copies: int
    reach: float
    row: int = 0
    multiprocessors: int = 0
    moved: str = "sent"
    experts: int = 0


Call = Product | AttentionCall | Traffic | NodeExchange | Timed | None
CALLS: dict[str, type] = {"gemm": Product, "attention": AttentionCall, "memory_bound": Traffic, "measured": Timed}
"""Work of a compute row -> what it calls; other work calls nothing."""
STREAM = Traffic()
AWAITED = Traffic(host="end")
EXCHANGED = Traffic("exchange")
SYNCHRONISED = Traffic(host="layer")
FETCHED = Traffic(host="hooks")
JOINED = Traffic(host="slices")


def waits(call: Call, host: str) -> bool:
    """Return whether the host does so at a row: "end", "layer", "hooks" or "slices".

    >>> waits(AWAITED, "end"), waits(STREAM, "end"), waits(None, "layer")
    (True, False, False)
    """
    return isinstance(call, Traffic) and call.host == host


def write_call(call: Call) -> str:
    """Return a call as one word; `read_call` is the inverse.

    >>> write_call(AttentionCall("te", "causal", 0, 8, 2048)), write_call(Traffic("layer backward")), write_call(AWAITED)
    ('attention(te,causal,0,8,2048)', 'layer_backward', 'stream+end')
    """
    match call:
        case None:
            return "-"
        case Timed():
            return f"measured({call.seconds!r})"
        case Convolved():
            return f"{call.order}({call.shared!r},{call.saved!r})"
        case Product():
            return call.order
        case AttentionCall():
            return f"attention({call.kernel},{call.mask},{call.window},{call.kv_heads},{call.keys})"
        case NodeExchange():
            words = [str(call.copies), repr(call.reach)]
            if call.row:
                words += [str(call.row), str(call.multiprocessors), call.moved, str(call.experts)]
            return f"once_per_node({','.join(words)})"
    return call.access.replace(" ", "_") + (f"+{call.host}" if call.host else "")


_ATTENTION = re.compile(r"attention\((\w+),(\w+),(\d{1,15}),(\d{1,15}),(\d{1,15})\)")
_WINDOWS = re.compile(r"(TN|NN|NT)\(([0-9.e+-]{1,30}),([0-9.e+-]{1,30})\)")
_TIMED = re.compile(r"measured\(([0-9.e+-]{1,30})\)")
_EXCHANGE = re.compile(
    r"once_per_node\((\d{1,15}),([0-9.e+-]{1,30})(?:,([1-9]\d{0,14}),([1-9]\d{0,14}),(sent|fetched|copied),(\d{1,15}))?\)"
)


def read_call(word: str, what: str) -> Call:
    """Return the call that a word names; ValueError with what is allowed.

    >>> read_call("NT", "call"), read_call("scores", "call"), read_call("once_per_node(8,0.5,4096,32,sent,16)", "call").row
    (Product(order='NT'), Traffic(access='scores', host=''), 4096)
    """
    if word == "-":
        return None
    if word in ORDERS:
        return Product(word)
    if found := _WINDOWS.fullmatch(word):
        shared, saved = map(_positive, found.groups()[1:])
        if shared and saved:
            return Convolved(found.group(1), shared, saved)
    if (found := _TIMED.fullmatch(word)) and (seconds := _positive(found.group(1))):
        return Timed(seconds)
    if (found := _ATTENTION.fullmatch(word)) and found.group(2) in MASKS:
        window, heads, keys = map(int, found.groups()[2:])
        return AttentionCall(found.group(1), found.group(2), window, heads, keys)
    if found := _EXCHANGE.fullmatch(word):
        copies, reach, row, working, moved, experts = found.groups()
        return NodeExchange(
            int(copies), float(reach), int(row or 0), int(working or 0), moved or "sent", int(experts or 0)
        )
    access, _, host = word.partition("+")
    if access.replace("_", " ") in ACCESSES and host in _HOST:
        return Traffic(access.replace("_", " "), host)
    raise ValueError(
        f"{what} is -, {', '.join(ORDERS)}, TN(shared,saved), measured(seconds), "
        "attention(kernel,mask,window,kv_heads,keys), once_per_node(copies,reach), "
        "once_per_node(copies,reach,row,multiprocessors,sent|fetched|copied,experts) or an access "
        f"({', '.join(a.replace(' ', '_') for a in ACCESSES)}; +end or +layer where the host waits, +hooks or +slices where it fetches "
        f"weights), got {word[:60]!r}"
    )


def _positive(word: str) -> float:
    """A number above 0; 0 = the word is none."""
    try:
        number = float(word)
    except ValueError:
        return 0.0
    return number if 0.0 < number < float("inf") else 0.0
