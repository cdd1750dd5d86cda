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


class Model(NamedSpec):
    """A decoder-only transformer, as its authors describe it.

    `sequence_length` [tokens] is that of pretraining: the default of jobs, and the limit where positions are learned.
    `kv_heads` defaults to `heads`, `head_dim` to hidden / heads.  `qkv_bias`: biases of the query, key and value
    projections; `linear_bias`: of all other linear layers.  `gated_mlp`: three matrices (SwiGLU) in place of two.
    `parameters_published`: what the authors print, for comparison only.
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

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        hidden, heads = data.get("hidden"), data.get("heads")
        filled = dict(data)
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
        return self

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm: a scale, and for layer norm a shift."""
        return self.hidden * (2 if self.norm == "layer_norm" else 1)

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention: query, key, value and output projections with their biases."""
        projected = (self.heads + 2 * self.kv_heads) * self.head_dim
        output = self.heads * self.head_dim * self.hidden
        biases = (projected if self.qkv_bias else 0) + (self.hidden if self.linear_bias else 0)
        return self.hidden * projected + output + biases

    @property
    def mlp_parameters(self) -> int:
        """Parameters of one layer's MLP with its biases."""
        up = 2 if self.gated_mlp else 1
        biases = up * self.ffn + self.hidden if self.linear_bias else 0
        return (up + 1) * self.hidden * self.ffn + biases

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer: attention, MLP and two norms."""
        return self.attention_parameters + self.mlp_parameters + 2 * self.norm_parameters

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
        return self.layers * self.layer_parameters + self.embedding_parameters + self.head_parameters

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
