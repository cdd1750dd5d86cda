"""Builds a layer's graph: the dimensions of a microbatch, and blocks that add operations one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

from simulator.units import FP32
from simulator.workload.graph import Dim, Keep, Kernel, LayerGraph, Lookup, Moves, Op, Product, Tensor
from simulator.workload.layer_case import LayerCase
from simulator.workload.layer_kind import MTP_LAYER, layer_kind
from simulator.workload.precision import FROZEN_BYTES

__all__ = ["LayerBuilder"]

AnyOp = TypeVar("AnyOp", bound=Op)


class LayerBuilder:
    """A graph under construction; e = bytes of an activation's element, kept = of a quantised one."""

    def __init__(self, case: LayerCase) -> None:
        m, style, precision = case.model, case.style, case.precision
        self.m, self.style, self.peers = m, style, case.peers
        self.kind = layer_kind(m.layer_kinds[-1] if case.kind == MTP_LAYER else case.kind)
        self.e, self.kept = float(precision.element), precision.quantised_element
        self.stream = FP32 if style.autocast else self.e
        """Bytes of an element of the residual stream."""
        self.quantises = precision.quantises
        self.batch, self.sequence = Dim("batch", case.sequences), Dim("sequence", case.length)
        self.source = Dim("source_sequence", case.source)
        self.keys = (case.context + case.length) * case.peers
        self.hidden, self.ffn, self.vocabulary = (
            Dim("hidden", m.hidden),
            Dim("ffn", m.ffn),
            Dim("vocabulary", case.vocabulary),
        )
        self.heads, self.kv_heads = Dim("heads", m.heads), Dim("kv_heads", m.kv_heads, serves="heads")
        self.head_dim, self.value_dim = Dim("head_dim", m.head_dim), Dim("value_dim", m.value_head_dim)
        self.experts = Dim("experts", m.experts)
        self.inputs: list[Tensor] = []
        self.results: list[Tensor] = []
        """What others read beside the layer's own output."""
        self.ops: list[Op] = []
        self.weights: list[Tensor] = []
        self._modules: tuple[str, ...] = ()
        self._captured = ""
        self._looped = False

    @property
    def tokens(self) -> tuple[Dim, Dim]:
        """The dimensions of the microbatch's tokens."""
        return self.batch, self.sequence

    @property
    def qkv_apart(self) -> bool:
        """Whether queries, keys and values are three products."""
        return not self.style.joined_qkv and self.m.positions != "learned"

    @property
    def t(self) -> int:
        """Tokens of the microbatch."""
        return self.batch.size * self.sequence.size

    def tensor(self, name: str, *dims: Dim, element: float | None = None, role: str = "activation") -> Tensor:
        """A tensor; `element`: its bytes per element, by default those of an activation."""
        return Tensor(name, dims, self.e if element is None else element, role)

    def part(self, name: str, *dims: Dim, turns: int, element: float = 4.0) -> Tensor:
        """A tensor of which a part stands at a time, in fp32."""
        return replace(self.tensor(name, *dims, element=element), turns=turns)

    def given(self, name: str, *dims: Dim, element: float | None = None, role: str = "activation") -> Tensor:
        """An input of the graph; of role "stream" where it crosses pipeline boundaries."""
        tensor = self.tensor(name, *dims, element=self.stream if role == "stream" else element, role=role)
        self.inputs.append(tensor)
        return tensor

    def passed_by(self, *dims: Dim) -> Tensor:
        """The output of another stack, which crosses pipeline boundaries beside the layer's input."""
        found = next((t for t in self.inputs if t.name == "other stack"), None)
        return found or self.given("other stack", *dims, role="stream")

    def weight(
        self, name: str, *dims: Dim, role: str = "weight", adapter: bool = False, element: float | None = None
    ) -> Tensor:
        """A weight that an operation of this graph must own; where adapters are trained (`adapter`), all others are frozen."""
        tensor = replace(
            self.tensor(name, *dims, element=element, role=role), frozen=bool(self.m.lora_rank) and not adapter
        )
        self.weights.append(tensor)
        return tensor

    @contextlib.contextmanager
    def module(self, name: str) -> Iterator[None]:
        """Operations added inside belong to this module of selective recompute."""
        before = self._modules
        self._modules = (*before, name)
        yield
        self._modules = before

    @contextlib.contextmanager
    def outside(self, name: str) -> Iterator[None]:
        """Operations added inside do not belong to this module, though it is open around them."""
        before = self._modules
        self._modules = tuple(module for module in before if module != name)
        yield
        self._modules = before

    @contextlib.contextmanager
    def captured(self, part: str) -> Iterator[None]:
        """Operations added inside are captured with this part of the layer."""
        before, self._captured = self._captured, part
        yield
        self._captured = before

    @contextlib.contextmanager
    def looped(self, loops: bool) -> Iterator[None]:
        """Operations added inside run once for each expert of the rank, if `loops`."""
        before, self._looped = self._looped, loops
        yield
        self._looped = before

    def add(self, op: AnyOp) -> AnyOp:
        """Append an operation, as part of the modules that are open."""
        modules, captured = (*self._modules, *op.modules), op.captured or self._captured
        op = replace(op, modules=modules, captured=captured, looped=self._looped, **_without_gradients(op))
        self.ops.append(op)
        return op

    def linear(
        self,
        label: str,
        x: Tensor,
        outputs: tuple[Tensor, ...],
        depth: tuple[Dim, ...],
        *,
        keep: Keep | None,
        bias: bool,
        again: tuple[str, ...] = (),
        each: tuple[Dim, ...] = (),
        more_keeps: tuple[Keep, ...] = (),
        vectors: tuple[Tensor, ...] = (),
        beside: tuple[Tensor, ...] = (),
        parts: tuple[str, ...] = (),
        **more: Any,
    ) -> tuple[Tensor, ...]:
        """A product of `x` with one weight per output; its bias is added in the product or by the kernel that follows.

        Where the model has low-rank adapters for some of its outputs, the product of the frozen weight and what the adapters add.

        Args:
            depth: the dimensions summed over; a weight has these and what its output has beside the rows of `x`.
            keep: its input as it is kept.
            each: dimensions of which every one has weights of its own (experts).
            vectors: weights that it owns beside these.
            beside: what it reads as further columns of `x`.
            parts: what each output is to adapters (`Model.lora_modules`); () = none is adapted.
            more: other fields of `Product`.
        """
        adapted = tuple(part in self.m.lora_modules for part in parts) if self.m.lora_rank else ()
        if any(adapted):
            return self._with_adapters(
                label,
                x,
                outputs,
                depth,
                adapted,
                keep=keep,
                bias=bias,
                again=again,
                each=each,
                more_keeps=more_keeps,
                **more,
            )
        if self.m.lora_rank:  # a frozen weight's product: its backward does not read the input
            keep = None
        rows = {d.name for d in x.dims}
        wide = [tuple(d for d in out.dims if d.name not in rows) for out in outputs]
        named = [f"{label} weight" if len(outputs) == 1 else f"{label} weight of {out.name}" for out in outputs]
        narrow = FROZEN_BYTES.get(self.m.frozen_format) if outputs[0].role != "logits" else None
        weights = [
            self.weight(name, *each, *depth, *dims, element=narrow) for name, dims in zip(named, wide, strict=True)
        ]
        if bias:
            weights += [
                self.weight(f"{w.name}, bias", *each, *dims, role="bias") for w, dims in zip(weights, wide, strict=True)
            ]
        weights += vectors
        self.add(
            Product(
                label=label,
                inputs=(x, *beside),
                outputs=outputs,
                weights=tuple(weights),
                keeps=(*((keep,) if keep else ()), *more_keeps),
                again=again,
                **{"backward_launches": 2 + (1 if bias else 0), **more},
            )
        )
        return outputs

    def _with_adapters(
        self,
        label: str,
        x: Tensor,
        outputs: tuple[Tensor, ...],
        depth: tuple[Dim, ...],
        adapted: tuple[bool, ...],
        *,
        keep: Keep | None,
        again: tuple[str, ...],
        each: tuple[Dim, ...],
        more_keeps: tuple[Keep, ...],
        **more: Any,
    ) -> tuple[Tensor, ...]:
        """As `linear`: y = W x + (alpha / r) B A x (Hu et al., arXiv 2106.09685, section 4.1), W frozen.

        As PEFT's Linear.forward: dropout of the input, A, B, a product with the scale, a sum; one adapter per separate product.

        Args:
            adapted: which outputs have an adapter.
        """
        base = tuple(
            replace(t, name=f"{t.name}, frozen product") if low else t for t, low in zip(outputs, adapted, strict=True)
        )
        frozen = {t.name: b for t, b in zip(outputs, base, strict=True)}
        kept = tuple(replace(k, tensor=frozen.get(k.tensor.name, k.tensor)) for k in more_keeps)
        made = tuple(frozen[name].name for name in again)
        self.linear(label, x, base, depth, keep=None, again=made, each=each, more_keeps=kept, adapted=True, **more)
        kernels, first = more.get("kernels") or (len(outputs),), 0
        for n in kernels:
            some = [i for i in range(first, first + n) if adapted[i]]
            first += n
            if some:
                self._adapter(label, x, [(base[i], outputs[i]) for i in some], depth, keep, each)
                if not self.m.lora_dropout:
                    keep = None  # all read the same tensor
        return outputs

    def _adapter(
        self,
        label: str,
        x: Tensor,
        sums: list[tuple[Tensor, Tensor]],
        depth: tuple[Dim, ...],
        keep: Keep | None,
        each: tuple[Dim, ...],
    ) -> None:
        """Add B A x to what a frozen product made; `sums`: (the product's output, the sum), pairwise.

        Where tensor-parallel ranks gather the tokens of a product's input, its adapter drops and multiplies all of them on each rank, and
        where they sum a product's output and scatter its tokens, its adapter's second matrix is divided by columns and an all_to_all makes
        tokens of them (NVIDIA/NeMo parallel_adapters.py, ParallelLinearAdapter: return_layernorm_output_gathered, all2all_hp2sp).
        """
        name, rows, e = f"{label} adapter of {sums[0][1].name}", {d.name for d in x.dims}, self.e
        rank, given = Dim("lora_rank", self.m.lora_rank), x
        joined = depth == (self.hidden,) and not each
        if keep:  # its products are in 16 bits
            keep = replace(keep, element=None, joined=joined)
        if self.m.lora_dropout:
            given, mask = (
                replace(x, name=f"{name} input"),
                self.tensor(f"{name} mask", *x.dims, element=1.0, role="mask"),
            )
            moved = Moves(dims=x.dims, read=e, written=e + 1, backward_read=e + 1, backward_written=e, joined=joined)
            self.kernel(
                f"{name} dropout",
                (x,),
                (given, mask),
                moved,
                keeps=(Keep(tensor=mask, joined=joined),),
                access="stream",
            )
            keep = Keep(tensor=given, joined=joined)
        low = self.tensor(f"{name} low rank", *(d for d in x.dims if d not in depth), rank)
        weight = self.weight(f"{name} A", *each, *depth, rank, adapter=True)
        common: dict[str, Any] = {"backward_launches": 2, "quantised": False}
        self.add(
            Product(
                label=f"{name} A",
                inputs=(given,),
                outputs=(low,),
                weights=(weight,),
                keeps=(keep,) if keep else (),
                joined=joined,
                **common,
            )
        )
        wide = [tuple(d for d in out.dims if d.name not in rows) for _, out in sums]
        weights = tuple(
            self.weight(f"{name} B of {out.name}", *each, rank, *dims, adapter=True)
            for (_, out), dims in zip(sums, wide, strict=True)
        )
        made = tuple(replace(out, name=f"{out.name}, adapter") for _, out in sums)
        held = Keep(tensor=low, name="adapters' low rank")
        self.add(Product(label=f"{name} B", inputs=(low,), outputs=made, weights=weights, keeps=(held,), **common))
        self.kernel(
            f"{name} sum",
            (*(base for base, _ in sums), *made),
            tuple(out for _, out in sums),
            *(Moves(dims=t.dims, read=3 * e, written=2 * e, backward_read=e, backward_written=e) for _, t in sums),
            Moves(dims=x.dims, backward_read=2 * e, backward_written=e, joined=joined),
            crosses=wide[0] == (self.hidden,) and not each,
            access="stream",
            launches=2,
            backward_launches=2,
        )

    def kernel(
        self, label: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], *moves: Moves, **more: Any
    ) -> Tensor:
        """Add a kernel, or several, that moves bytes and makes tensors; returns the first of these.

        Args:
            more: other fields of `Kernel`.
        """
        return self.add(Kernel(label=label, inputs=inputs, outputs=outputs, moves=moves, **more)).outputs[0]

    def product(
        self, label: str, inputs: tuple[Tensor, ...], out: Tensor, *keeps: Keep, backward_launches: int = 2, **more: Any
    ) -> Tensor:
        """Add a product of two activations, the first inputs; returns its result.

        Args:
            more: other fields of `Product`.
        """
        made = Product(
            label=label, inputs=inputs, outputs=(out,), keeps=keeps, backward_launches=backward_launches, **more
        )
        return self.add(made).outputs[0]

    def moves(self, label: str, x: Tensor, name: str, read: float = 1.0, written: float = 1.0, **more: Any) -> Tensor:
        """A kernel whose output is like its input and whose backward is its reverse; `read`, `written`: how often."""
        out = replace(x, name=name)
        e = x.element
        moved = Moves(
            dims=x.dims, read=read * e, written=written * e, backward_read=written * e, backward_written=read * e
        )
        return self.kernel(label, (x,), (out,), moved, **more)

    def graph(self, kind: str, *outputs: Tensor) -> LayerGraph:
        """The finished graph."""
        return LayerGraph(
            kind=kind,
            inputs=tuple(self.inputs),
            ops=tuple(self.ops),
            outputs=(*outputs, *self.results),
            weights=tuple(self.weights),
            peers=self.peers,
        )


def _without_gradients(op: Op) -> dict[str, Any]:
    """What is other of a kernel whose weights are frozen: nothing is summed for them, and a look-up has no backward."""
    if not (isinstance(op, Kernel) and op.frozen):
        return {}
    none: dict[str, Any] = {"sums_read": 0.0}
    if isinstance(op, Lookup):
        none |= {"backward_read": 0.0, "backward_written": 0.0}
    moves = tuple(replace(moved, **none) for moved in op.moves)
    return {"moves": moves} | ({"backward_launches": 0} if isinstance(op, Lookup) else {})
