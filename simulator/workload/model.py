"""A model's shape, and the parameters that follow from it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from simulator.specs import Name, NamedSpec, load_named
from simulator.units import parse

__all__ = ["Model", "load_model"]


def _parameters(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse(value, "tokens")
    except ValueError:
        raise ValueError(f'expected a number of parameters such as "175 B", got {value[:60]!r}') from None


Width = Annotated[int, Field(ge=1, le=10**6)]
Part = Annotated[int, Field(ge=0, le=10**7)]
"""A size that 0 leaves out."""

_EXPERT_FIELDS = ("experts_per_token", "expert_ffn", "shared_expert_ffn", "dense_layers")
_LATENT_FIELDS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


class Model(NamedSpec):
    """A decoder-only transformer, dense or with experts, as its authors describe it.

    `sequence_length` [tokens] is that of pretraining: the default of jobs, and the limit where positions are learned.
    `kv_heads` defaults to `heads`, `head_dim` to hidden / heads.  `qkv_bias`: biases of the query, key and value
    projections; `linear_bias`: of all other linear layers.  `gated_mlp`: three matrices (SwiGLU) in place of two.
    `parameters_published`: what the authors print, for comparison only.

    Mixture of experts: `experts` MLPs of width `expert_ffn` (default: `ffn`), of which each token sees `experts_per_token`,
    beside shared ones of `shared_expert_ffn` in total; of the layers from `dense_layers` on, every `moe_every`-th has them.
    `attention` = "latent" (multi-head latent attention, DeepSeek-V2, arXiv 2405.04434): keys and values from a latent of
    `kv_lora_rank` (and queries from one of `q_lora_rank`, 0 = straight from the hidden state), heads of `qk_nope_head_dim` +
    `qk_rope_head_dim` for queries and keys and `v_head_dim` for values.
    """

    family: Name
    architecture: Name = "transformer"
    layers: Annotated[int, Field(ge=1, le=10_000)]
    hidden: Width
    heads: Annotated[int, Field(ge=1, le=10**5)]
    kv_heads: Annotated[int, Field(ge=1, le=10**5)] = 0
    head_dim: Width = 0
    ffn: Annotated[int, Field(ge=1, le=10**7)]
    gated_mlp: bool
    norm: Literal["layer_norm", "rms_norm"]
    positions: Literal["learned", "rotary", "alibi", "none"]
    tied_embeddings: bool
    vocabulary: Annotated[int, Field(ge=1, le=10**7)]
    sequence_length: Annotated[int, Field(ge=1, le=10**8)]
    linear_bias: bool
    qkv_bias: bool
    parameters_published: Annotated[float | None, Field(gt=0), BeforeValidator(_parameters)] = None
    experts: Part = 0
    experts_per_token: Part = 0
    expert_ffn: Part = 0
    shared_expert_ffn: Part = 0
    dense_layers: Part = 0
    moe_every: Annotated[int, Field(ge=1, le=10_000)] = 1
    attention: Literal["standard", "latent"] = "standard"
    q_lora_rank: Part = 0
    kv_lora_rank: Part = 0
    qk_nope_head_dim: Part = 0
    qk_rope_head_dim: Part = 0
    v_head_dim: Part = 0

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        hidden, heads = data.get("hidden"), data.get("heads")
        filled = dict(data)
        if data.get("experts") and data.get("ffn"):
            filled.setdefault("expert_ffn", data["ffn"])
        nope, rope = data.get("qk_nope_head_dim"), data.get("qk_rope_head_dim", 0)
        if data.get("attention") == "latent" and isinstance(nope, int) and isinstance(rope, int):
            filled.setdefault("head_dim", nope + rope)
        if isinstance(heads, int) and not isinstance(heads, bool) and heads > 0:
            filled.setdefault("kv_heads", heads)
            if isinstance(hidden, int) and hidden > 0 and hidden % heads == 0:
                filled.setdefault("head_dim", hidden // heads)
        return filled

    @model_validator(mode="after")
    def _check(self) -> Model:
        if not self.head_dim:
            raise ValueError(
                f"hidden must be a multiple of heads, but {self.hidden} is none of {self.heads}; or give head_dim"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, but {self.heads} is none of {self.kv_heads}")
        self._check_experts()
        self._check_latent()
        return self

    def _check_experts(self) -> None:
        given = [f"{name} = {getattr(self, name)}" for name in _EXPERT_FIELDS if getattr(self, name)]
        given += [f"moe_every = {self.moe_every}"] if self.moe_every > 1 else []
        if not self.experts and given:
            raise ValueError(
                f"{given[0]} belongs to a mixture of experts, but experts = 0; give experts or leave it out"
            )
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(
                f"experts_per_token must lie in 1..experts, but it is {self.experts_per_token} of {self.experts}"
            )
        if self.experts and not any(self.moe_layers):
            raise ValueError(
                f"dense_layers = {self.dense_layers} and moe_every = {self.moe_every} leave none of the {self.layers} layers "
                "with experts; make them smaller or leave out experts"
            )

    def _check_latent(self) -> None:
        given = [name for name in _LATENT_FIELDS if getattr(self, name)]
        if self.attention == "standard" and given:
            raise ValueError(f'{given[0]} belongs to latent attention; give attention = "latent" or leave it out')
        if self.attention == "standard":
            return
        missing = [name for name in _LATENT_FIELDS[1:] if name not in given]
        if missing:
            raise ValueError(f"latent attention needs {', '.join(missing)}")
        if self.head_dim != self.qk_nope_head_dim + self.qk_rope_head_dim or self.kv_heads != self.heads:
            raise ValueError(
                "latent attention has head_dim = qk_nope_head_dim + qk_rope_head_dim and kv_heads = heads, but head_dim = "
                f"{self.head_dim}, kv_heads = {self.kv_heads}; leave both out"
            )

    @property
    def moe_layers(self) -> tuple[bool, ...]:
        """Per layer, whether its MLP is a mixture of experts."""
        return tuple(
            self.experts > 0 and i >= self.dense_layers and (i + 1) % self.moe_every == 0 for i in range(self.layers)
        )

    @property
    def value_head_dim(self) -> int:
        """Width of a head's values: `v_head_dim` of latent attention, else `head_dim`."""
        return self.v_head_dim or self.head_dim

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm: a scale, and for layer norm a shift."""
        return self.hidden * (2 if self.norm == "layer_norm" else 1)

    @property
    def attention_weights(self) -> int:
        """Elements of one layer's attention matrices: query, key, value and output projections."""
        if self.attention == "standard":
            return self.hidden * (2 * self.heads + 2 * self.kv_heads) * self.head_dim
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
        return self.attention_weights + biases + self.q_lora_rank + self.kv_lora_rank

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
    def layer_parameters(self) -> int:
        """Parameters of one dense layer: attention, MLP and two norms."""
        return self.attention_parameters + self.mlp_parameters + 2 * self.norm_parameters

    @property
    def moe_layer_parameters(self) -> int:
        """Parameters of one layer with experts; 0 without."""
        return self._moe_layer(self.experts) if self.experts else 0

    def _moe_layer(self, experts: int) -> int:
        """Parameters of a layer of which so many routed experts count."""
        shared = self.mlp_weights(self.shared_expert_ffn) + self.mlp_biases(self.shared_expert_ffn)
        rest = self.attention_parameters + 2 * self.norm_parameters
        return rest + self.router_parameters + experts * self.expert_parameters + shared

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the token embedding and of learned positions."""
        positions = self.sequence_length * self.hidden if self.positions == "learned" else 0
        return self.vocabulary * self.hidden + positions

    @property
    def head_parameters(self) -> int:
        """Parameters of the final norm and of the output matrix; a tied matrix is counted with the embedding."""
        return self.norm_parameters + (0 if self.tied_embeddings else self.vocabulary * self.hidden)

    @property
    def parameters(self) -> int:
        """All parameters, exactly, without padding.

        >>> load_model("gpt2").parameters
        124439808
        """
        return self._all(self.experts)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: all but the routed experts that it does not see.

        >>> load_model("mixtral_8x7b").active_parameters
        12879925248
        """
        return self._all(self.experts_per_token)

    def _all(self, experts: int) -> int:
        sparse = sum(self.moe_layers)
        layers = (self.layers - sparse) * self.layer_parameters + (sparse * self._moe_layer(experts) if sparse else 0)
        return layers + self.embedding_parameters + self.head_parameters

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
