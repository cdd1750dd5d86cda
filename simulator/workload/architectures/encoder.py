"""Encoders: every token attends to every token, and the head predicts the tokens themselves (BERT).

    embedding (tokens, positions, types) - norm - layers - [linear - activation - norm] - output - cross entropy

Norms stand behind their residuals in the original; they cost the same in front.  All positions are predicted, as the libraries'
training code does (the original gathers the 15 % that were masked).  Source: Devlin et al., arXiv 1810.04805.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.workload.architectures.pieces import Pieces
from simulator.workload.architectures.transformer import Transformer
from simulator.workload.operator import Operator, Saved

__all__ = ["Encoder"]


class Encoder(Transformer):
    """Encoder-only transformer of tokens."""

    name = "encoder"
    source = "Devlin et al. 2018, arXiv 1810.04805"

    def operators(self, p: Pieces, kind: str) -> list[Operator]:
        """See `Transformer.operators`."""
        if kind == "embedding":
            return self._embedding(p)
        return self._head(p) if kind == "head" else super().operators(p, kind)

    def _embedding(self, p: Pieces) -> list[Operator]:
        m = p.m
        table, types = p.embedding()[0], m.token_types * m.hidden
        moved = p.t * m.hidden * p.e if types else 0.0
        table = replace(
            table,
            read=table.read + moved,
            written=table.written + moved,
            backward_read=table.backward_read + moved,
            parameters=table.parameters + types,
            small_parameters=table.small_parameters + types,
        )
        return [table, p.norm("embedding norm")]

    def _head(self, p: Pieces) -> list[Operator]:
        m = p.m
        out: list[Operator] = []
        if m.head_transform:
            kept = Saved(name="head transform input", bytes=p.t * m.hidden * p.kept, region="sequence")
            product = p.linear("head transform", "replicated", m.hidden, m.hidden, kept, True)
            out = [product, _activation(p), p.norm("head norm")]
        if m.pooler:
            first = p.linear(
                "pooler", "replicated", m.hidden, m.hidden, Saved(name="", bytes=0.0, region="whole"), True
            )
            out.append(replace(first, shape=(1, p.sequences, m.hidden, m.hidden), backward_read=0.0))
        _, product, *loss = p.head()
        bias = m.vocabulary if m.head_transform else 0
        return [*out, replace(product, parameters=product.parameters + bias), *loss]


def _activation(p: Pieces) -> Operator:
    """The activation function between the head's linear layer and its norm."""
    x = p.t * p.m.hidden * p.e
    return Operator(
        label="head activation",
        work="memory_bound",
        split="sequence",
        read=x,
        written=x,
        backward_read=2 * x,
        backward_written=x,
        saved=(Saved(name="head activation input", bytes=x, region="sequence"),),
    )
