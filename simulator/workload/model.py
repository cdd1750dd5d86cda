"""A model: its shape, and the parameters that follow from it."""

from __future__ import annotations

from collections import Counter

from simulator.specs import load_named
from simulator.workload.layer_kind import LayerKind, layer_kind
from simulator.workload.model_fields import ModelFields

__all__ = ["Model", "load_model"]


RELATIVE_BUCKETS = 32
"""Distances that T5 tells apart (Raffel et al., arXiv 1910.10683, section 2.1), in each of its stacks."""


class Model(ModelFields):
    """A model as its authors describe it (fields: `ModelFields`), and what can be counted from that."""

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm: a scale, and for layer norm a shift."""
        return self.hidden * (2 if self.norm == "layer_norm" else 1)

    @property
    def attention_weights(self) -> int:
        """Elements of one layer's attention matrices: query, key, value and output projections."""
        if self.attention == "standard":
            gate = self.heads if self.attention_gate else 0
            return self.hidden * (2 * self.heads + gate + 2 * self.kv_heads) * self.head_dim
        query = self.heads * self.head_dim
        queries = self.q_lora_rank * (self.hidden + query) if self.q_lora_rank else self.hidden * query
        latent = self.hidden * (self.kv_lora_rank + self.qk_rope_head_dim)
        up = self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_head_dim)
        return queries + latent + up + self.heads * self.v_head_dim * self.hidden

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention: its matrices, their biases, and the norms of latents."""
        projected = (self.heads + 2 * self.kv_heads) * self.head_dim
        biases = (projected if self.qkv_bias else 0) + (self.hidden if self.linear_bias else 0)
        norms = 2 * self.head_dim * (2 if self.norm == "layer_norm" else 1) if self.qk_norm else 0
        return self.attention_weights + biases + self.q_lora_rank + self.kv_lora_rank + norms

    def mlp_weights(self, width: int) -> int:
        """Return the elements of the matrices of an MLP of this inner width."""
        return (3 if self.gated_mlp else 2) * self.hidden * width

    def mlp_biases(self, width: int) -> int:
        """Return the biases of an MLP of this inner width."""
        return (2 if self.gated_mlp else 1) * width + self.hidden if self.linear_bias and width else 0

    @property
    def mlp_parameters(self) -> int:
        """Parameters of one dense layer's MLP with its biases."""
        return self.mlp_weights(self.ffn) + self.mlp_biases(self.ffn)

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert with its biases."""
        return self.mlp_weights(self.expert_ffn) + self.mlp_biases(self.expert_ffn)

    @property
    def router_parameters(self) -> int:
        """Parameters of one router."""
        return self.experts * (self.hidden + (1 if self.linear_bias else 0))

    @property
    def ssm_inner(self) -> int:
        """Inner width of a layer that carries a state."""
        return self.ssm_heads * self.ssm_head_dim

    @property
    def ssm_convolved(self) -> int:
        """Channels of its convolution: values, keys and queries."""
        return self.ssm_inner + 2 * self.ssm_groups * self.ssm_state

    def ssm_projected(self, mixer: str) -> int:
        """Return the columns of its first product: what is convolved, a gate, and one step size (delta: and a rate) per head."""
        return self.ssm_convolved + self.ssm_inner + self.ssm_heads * (2 if mixer == "delta" else 1)

    def ssm_small_parameters(self, mixer: str) -> int:
        """Return the parameters of its convolution (Mamba-2: with a bias) and of its heads' constants."""
        wide = self.conv_width + (1 if mixer == "mamba2" else 0)
        return self.ssm_convolved * wide + self.ssm_heads * (3 if mixer == "mamba2" else 2)

    def mixer_weights(self, kind: LayerKind) -> int:
        """Return the elements of the matrices that mix a layer's tokens: attention's, and a decoder's second ones."""
        if kind.mixer == "none":
            return 0
        if kind.mixer in ("mamba2", "delta"):
            return self.hidden * (self.ssm_projected(kind.mixer) + self.ssm_inner)
        return self.attention_weights * (2 if kind.stack == "cross" else 1)

    def mixer_parameters(self, kind: LayerKind) -> int:
        """Return the parameters of a layer's mixer with its norms in front (and behind)."""
        if kind.mixer == "none":
            return 0
        norms = self.norm_parameters * (2 if self.post_norms else 1)
        if kind.mixer in ("mamba2", "delta"):
            gate = self.ssm_inner if kind.mixer == "mamba2" else self.ssm_head_dim
            return norms + self.mixer_weights(kind) + self.ssm_small_parameters(kind.mixer) + gate
        own = self.attention_parameters
        if self.positions == "transformer_xl":
            own += self.heads * self.head_dim * (self.hidden + 2)
        return (own + norms) * (2 if kind.stack == "cross" else 1)

    def seen_weights(self, kind: LayerKind) -> float:
        """Return the elements of a layer's matrices that one token meets: of the experts those that it is sent to."""
        if kind.mlp == "moe":
            experts = self.experts_per_token * self.mlp_weights(self.expert_ffn)
            mlp = self.hidden * self.experts + experts + self.mlp_weights(self.shared_expert_ffn)
        else:
            mlp = self.mlp_weights(self.ffn) if kind.mlp == "dense" else 0
        return self.mixer_weights(kind) + mlp

    def kind_parameters(self, kind: LayerKind, experts: int | None = None) -> int:
        """Return the parameters of a layer of this kind, of which so many routed experts count (None = all)."""
        total = self.mixer_parameters(kind)
        if kind.mlp == "only":
            return total
        total += self.norm_parameters * (2 if self.post_norms else 1)
        if kind.mlp == "dense":
            return total + self.mlp_parameters
        shared = self.mlp_weights(self.shared_expert_ffn) + self.mlp_biases(self.shared_expert_ffn)
        count = self.experts if experts is None else experts
        return total + self.router_parameters + count * self.expert_parameters + shared

    @property
    def layer_parameters(self) -> int:
        """Parameters of one dense layer: attention, MLP and norms."""
        return self.kind_parameters(LayerKind())

    @property
    def moe_layer_parameters(self) -> int:
        """Parameters of one layer with experts; 0 without."""
        return self.kind_parameters(LayerKind(mlp="moe")) if self.experts else 0

    @property
    def mtp_parameters(self) -> int:
        """Parameters of the multi-token prediction modules, beside the embedding and head that they share with the model."""
        if not self.mtp_layers:
            return 0
        last = layer_kind(self.layer_kinds[-1])
        return self.mtp_layers * (3 * self.norm_parameters + 2 * self.hidden**2 + self.kind_parameters(last))

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding: of tokens (or patches and the class token), of their types, and of learned positions."""
        h = self.hidden
        positions = self.sequence_length * h if self.positions == "learned" else 0
        if self.architecture == "vision":
            return (self.patch_inputs + 1) * h + h + positions
        norm = self.norm_parameters if self.architecture == "encoder" else 0
        stacks = 2 if self.encoder_layers else 1
        buckets = stacks * RELATIVE_BUCKETS * self.heads if self.positions == "relative_bias" else 0
        return (self.vocabulary + self.token_types) * h + positions + norm + buckets

    @property
    def head_parameters(self) -> int:
        """Parameters of the norms at the end of stacks and of the output; a tied matrix is counted with the embedding."""
        h = self.hidden
        output = 0 if self.tied_embeddings else self.vocabulary * h
        if self.architecture == "encoder":
            transform = h * (h + 1) + self.norm_parameters + self.vocabulary if self.head_transform else 0
            return output + transform + (h * (h + 1) if self.pooler else 0)
        if self.architecture == "vision":
            return output + self.norm_parameters + self.vocabulary
        return output + self.norm_parameters * (2 if self.encoder_layers else 1)

    @property
    def parameters(self) -> int:
        """All parameters, exactly, without padding.

        >>> load_model("gpt2").parameters
        124439808
        """
        return self._all(None)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: all but the routed experts that it does not see.

        >>> load_model("mixtral_8x7b").active_parameters
        12879925248
        """
        return self._all(self.experts_per_token)

    def _all(self, experts: int | None) -> int:
        total = self.embedding_parameters + self.head_parameters
        for name, count in Counter(self.layer_kinds).items():
            kind = layer_kind(name)
            total += count * self.kind_parameters(kind, experts)
        return total

    def padded_vocabulary(self, tensor_parallel: int, multiple: int = 128) -> int:
        """Return the rows of the embedding once padded so that each rank of the split holds a multiple of `multiple`.

        Source: Megatron-LM pads to a multiple of make_vocab_size_divisible_by (128) x tensor_parallel.

        >>> load_model("gpt3_175b").padded_vocabulary(8)
        51200
        """
        unit = multiple * tensor_parallel
        return -(-self.vocabulary // unit) * unit


def load_model(name: str) -> Model:
    """Return the model of this name, alias or file.

    Raises:
        SpecError: no such model, or its file is wrong.
    """
    return load_named("models", name, Model)
