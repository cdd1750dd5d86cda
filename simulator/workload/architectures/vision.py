"""Vision transformers: an encoder of image patches with a class token, and a head on that token alone (ViT).

    patches [n -> h] - positions - layers - norm - [h -> classes] of the first token - cross entropy

`sequence_length` counts the patches and the class token.  Source: Dosovitskiy et al., arXiv 2010.11929, section 3.1.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.workload.architectures.pieces import Pieces
from simulator.workload.architectures.transformer import Transformer
from simulator.workload.operator import Operator, Saved

__all__ = ["Vision"]


class Vision(Transformer):
    """Encoder of image patches."""

    name = "vision"
    source = "Dosovitskiy et al. 2020, arXiv 2010.11929, section 3.1"

    def operators(self, p: Pieces, kind: str) -> list[Operator]:
        """See `Transformer.operators`."""
        if kind == "embedding":
            return self._patches(p)
        if kind != "head":
            return super().operators(p, kind)
        norm, product, *loss = p.head()
        share = p.sequences / p.t
        return [
            norm,
            replace(
                product,
                shape=(1, p.sequences, *product.shape[2:]),
                parameters=product.parameters + p.m.vocabulary,
                saved=(Saved(name="head input", bytes=p.sequences * p.m.hidden * p.e, region="whole"),),
            ),
            *(
                replace(
                    o,
                    read=o.read * share,
                    written=o.written * share,
                    backward_read=o.backward_read * share,
                    backward_written=o.backward_written * share,
                    saved=tuple(replace(s, bytes=s.bytes * share) for s in o.saved),
                )
                for o in loss
            ),
        ]

    def input_bytes(self, p: Pieces, kind: str) -> float:
        """See `Transformer.input_bytes`: patches in the training precision."""
        return p.t * p.m.patch_inputs * p.e if kind == "embedding" else super().input_bytes(p, kind)

    def _patches(self, p: Pieces) -> list[Operator]:
        m = p.m
        kept = Saved(name="patches", bytes=p.t * m.patch_inputs * p.e, region="sequence")
        product = p.linear("patch embedding", "replicated", m.hidden, m.patch_inputs, kept, True)
        x = p.t * m.hidden * p.e
        positions = (m.sequence_length if m.positions == "learned" else 0) * m.hidden + m.hidden
        return [
            product,
            Operator(
                label="class token and positions",
                work="memory_bound",
                split="sequence",
                read=x,
                written=x,
                backward_read=x,
                parameters=positions,
                small_parameters=positions,
                launches=2,
                backward_launches=2,
            ),
        ]
