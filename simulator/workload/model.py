"""A model: its shape, and the parameters that follow from it."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from simulator.specs import load_named
from simulator.workload.counts import counts, forward_products, module_weights, own_weights
from simulator.workload.layer_kind import DECODER_EMBEDDING, MTP_HEAD, MTP_LAYER, LayerKind
from simulator.workload.model_fields import ModelFields

__all__ = ["LONGEST_UNASKED", "Model", "load_model"]

LONGEST_UNASKED = 8192
"""Tokens of a sequence at most where nobody says how many: a length at which codes train that take longer contexts later."""

RELATIVE_BUCKETS = 32
"""Distances that T5 tells apart (Raffel et al., arXiv 1910.10683, section 2.1), in each of its stacks."""


class Model(ModelFields):
    """A model as its authors describe it (fields: `ModelFields`), and what can be counted from the graphs of its layers."""

    @property
    def attention_weights(self) -> int:
        """Elements of one layer's attention matrices: query, key, value and output projections."""
        return counts(self, LayerKind().name).mixing

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert with its biases; 0 without."""
        return counts(self, LayerKind(mlp="moe").name).routed // self.experts if self.experts else 0

    def mlp_weights(self, width: int) -> int:
        """Return the elements of the matrices of an MLP of this inner width."""
        return (3 if self.gated_mlp else 2) * self.hidden * width

    def seen_weights(self, kind: LayerKind) -> float:
        """Return the elements of a layer's matrices that one token meets: of the experts those that it is sent to."""
        found = counts(self, kind.name)
        return found.matrices - found.routed_matrices + self._seen(found.routed_matrices)

    def frozen_weights(self, kind: LayerKind) -> float:
        """Return, of `seen_weights`, the elements that are never trained."""
        found = counts(self, kind.name)
        return found.frozen_matrices - found.frozen_routed + self._seen(found.frozen_routed)

    def kind_parameters(self, kind: str, seen: bool = False) -> int:
        """Return the parameters of a layer of this kind, or of these the ones that one token meets (`seen`)."""
        found = counts(self, kind)
        return found.parameters - found.routed + (self._seen(found.routed) if seen else found.routed)

    def _seen(self, routed: int) -> int:
        """Of what all routed experts hold, what those of one token do."""
        return routed // self.experts * self.experts_per_token if routed else 0

    @property
    def layer_parameters(self) -> int:
        """Parameters of one dense layer: attention, MLP and norms."""
        return self.kind_parameters(LayerKind().name)

    @property
    def moe_layer_parameters(self) -> int:
        """Parameters of one layer with experts; 0 without."""
        return self.kind_parameters(LayerKind(mlp="moe").name) if self.experts else 0

    @property
    def mtp_parameters(self) -> int:
        """Parameters of the multi-token prediction modules, beside the embedding and head that they share with the model."""
        return sum(self.mtp_layers * module_weights(self, kind) for kind in (MTP_LAYER, MTP_HEAD) if self.mtp_layers)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding: of tokens (or patches and the class token), of their types, and of learned positions; in an
        encoder-decoder those of the decoder's beside, and of the norm behind the encoder."""
        kinds = ("embedding", DECODER_EMBEDDING) if self.encoder_layers else ("embedding",)
        return sum(w.elements for w in own_weights(self, *kinds).values())

    @property
    def head_parameters(self) -> int:
        """Parameters of the norm at the end of the layers and of the output; a tied matrix is counted with the embedding."""
        output = self.vocabulary * self.hidden if self.tied_embeddings else 0
        return sum(w.elements for w in own_weights(self, "head").values()) - output

    @property
    def parameters(self) -> int:
        """All parameters, exactly, without padding.

        >>> load_model("gpt2").parameters
        124439808
        """
        return self._all(False)

    @property
    def trained_parameters(self) -> int:
        """Parameters that are updated: all, or those of the adapters.

        >>> model = load_model("llama3_8b")
        >>> model.model_copy(update={"lora_rank": 16}).trained_parameters
        41943040
        """
        if not self.lora_rank:
            return self.parameters
        return sum(n * (self.kind_parameters(k) - counts(self, k).frozen) for k, n in Counter(self.layer_kinds).items())

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: all but the routed experts that it does not see.

        >>> load_model("mixtral_8x7b").active_parameters
        12879925248
        """
        return self._all(True)

    def _all(self, seen: bool) -> int:
        ends = self.embedding_parameters + self.head_parameters
        return ends + sum(n * self.kind_parameters(kind, seen) for kind, n in Counter(self.layer_kinds).items())

    @property
    def products(self) -> float:
        """Multiplications of one image's forward pass through a network of layers, those with weights; 0 of other models."""
        return sum(forward_products(self, kind) for kind in self.network.names) if self.network else 0.0

    @property
    def most_tokens(self) -> float:
        """Tokens of the longest sequence: those of its table of positions; without one there is no end."""
        return self.sequence_length if self.positions == "learned" else math.inf

    @property
    def usual_length(self) -> int:
        """Tokens of a sequence where nobody says how many: the longest that the model takes, at most 8,192; an image has all of its own.

        >>> load_model("gpt2").usual_length, load_model("qwen2_5_7b").usual_length
        (1024, 8192)
        """
        of_images = self.architecture in ("vision", "network")
        return self.sequence_length if of_images else min(self.sequence_length, LONGEST_UNASKED)

    def padded_vocabulary(self, tensor_parallel: int, multiple: int = 128) -> int:
        """Return the rows of the embedding once padded so that each rank of the split holds a multiple of `multiple`.

        Source: Megatron-LM pads to a multiple of make_vocab_size_divisible_by (128) x tensor_parallel.

        >>> load_model("gpt3_175b").padded_vocabulary(8)
        51200
        """
        unit = multiple * tensor_parallel
        return -(-self.vocabulary // unit) * unit


def load_model(name: str | Path) -> Model:
    """Return the model of this name, alias or file.

    Raises:
        SpecError: no such model, or its file is wrong.
    """
    return load_named("models", name, Model)
