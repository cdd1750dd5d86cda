"""What a model file says: the fields of a shape, and the rules that they keep."""

from __future__ import annotations

import functools
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from simulator.specs import Listed, Name, NamedSpec
from simulator.units import parse
from simulator.workload.layer_kind import LayerKind
from simulator.workload.network import Network

__all__ = ["ADAPTED", "LATENT_FIELDS", "STANDARD_FIELDS", "Adapted", "ModelFields"]


def _parameters(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse(value, "tokens")
    except ValueError:
        raise ValueError(f'expected a number of parameters such as "175 B", got {value[:60]!r}') from None


Width = Annotated[int, Field(ge=1, le=10**6)]
Part = Annotated[int, Field(ge=0, le=10**7)]
"""A size that 0 leaves out."""
Pattern = Listed
"""A list in a data file; it is repeated over the layers."""

_EXPERT_FIELDS = ("experts_per_token", "expert_ffn", "shared_expert_ffn", "dense_layers")
_FIELDS_OF = {
    "token_types": ("encoder", False),
    "head_transform": ("encoder", False),
    "pooler": ("encoder", False),
    "patch_inputs": ("vision", True),
    "encoder_layers": ("encoder_decoder", True),
    "target_length": ("encoder_decoder", True),
    "network": ("network", True),
}
"""Field -> (the architecture it belongs to, whether that always has it)."""
_DECODER_FIELDS = ("mixers", "mlps", "window", "mtp_layers")
_STATE_FIELDS = ("ssm_heads", "ssm_head_dim", "ssm_groups", "ssm_state", "conv_width")
STANDARD_FIELDS = ("qkv_bias", "qk_norm", "attention_gate")
Adapted = Literal["query", "key", "value", "output", "gate", "up", "down"]
ADAPTED: tuple[Adapted, ...] = get_args(Adapted)
"""The matrices of a layer that adapters may stand beside."""
_NETWORK_FIELDS = ("family", "architecture", "network", "parameters_published", *NamedSpec.model_fields)
"""What the file of a network of layers says; all else follows from its layers."""
LATENT_FIELDS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@functools.lru_cache(maxsize=256)
def _names(
    encoder: tuple[bool, ...], mixers: tuple[str, ...], mlps: tuple[bool, ...], sparse: tuple[bool, ...], stack: str
) -> tuple[str, ...]:
    """Names of the kinds of all layers; `encoder`: of a first stack, which layers have experts."""
    first = tuple(LayerKind(mlp="moe" if moe else "dense", stack="encoder").name for moe in encoder)
    rows = zip(mixers, mlps, sparse, strict=True)
    return first + tuple(LayerKind(m, "moe" if e else "dense" if mlp else "only", stack).name for m, mlp, e in rows)


def _of_network(data: dict[str, object]) -> dict[str, object]:
    """The fields of a model file that lists its layers: those of transformers are what its loss sees, or nothing."""
    filled: dict[str, object] = dict(
        heads=1, kv_heads=1, head_dim=1, ffn=1, gated_mlp=False, norm="layer_norm", positions="none", tied_embeddings=False,
        linear_bias=True, qkv_bias=True, layers=1, hidden=1, vocabulary=1, sequence_length=1,
    )  # fmt: skip
    try:
        found = Network.model_validate(data["network"])
    except ValidationError:  # the field itself tells what is wrong
        return data | filled
    filled |= dict(
        layers=len(found.names) - 2, hidden=found.features, vocabulary=found.classes, sequence_length=found.positions
    )
    for key in data.keys() & (ModelFields.model_fields.keys() - set(_NETWORK_FIELDS)):
        if data[key] != filled.get(key, ModelFields.model_fields[key].default):
            raise ValueError(
                f'{key} follows from the layers of architecture "network", but it is {data[key]!r}; leave it out'
            )
    return data | filled | {"network": found}


class ModelFields(NamedSpec):
    """A model's shape as its authors describe it.

    `architecture`: "transformer" (decoder only), "encoder" (BERT), "vision" (ViT) or "encoder_decoder" (T5).

    `sequence_length` [tokens] is that of pretraining: the default of jobs, and the limit where positions are learned.
    `kv_heads` defaults to `heads`, `head_dim` to hidden / heads.  `qkv_bias`: biases of the query, key and value
    projections; `linear_bias`: of all other linear layers.  `gated_mlp`: three matrices (SwiGLU) in place of two;
    `clamped_gate`: what enters the gate is clamped (GPT-OSS).  `activation`: of an MLP without a gate, as transformers names it: "gelu_new"
    (GPT-2's, by a hyperbolic tangent) and "gelu_python" (by an error function) are written out in tensor operations, each a kernel
    unless the code fuses them; "" is one kernel.
    `parameters_published`: what the authors print, for comparison only.

    Mixture of experts: `experts` MLPs of width `expert_ffn` (default: `ffn`), of which each token sees `experts_per_token`,
    beside shared ones of `shared_expert_ffn` in total; of the layers from `dense_layers` on, every `moe_every`-th has them.
    `attention` = "latent" (multi-head latent attention, DeepSeek-V2, arXiv 2405.04434): keys and values from a latent of
    `kv_lora_rank` (and queries from one of `q_lora_rank`, 0 = straight from the hidden state), heads of `qk_nope_head_dim` +
    `qk_rope_head_dim` for queries and keys and `v_head_dim` for values.
    `window` [tokens] with `mixers`, a pattern repeated over the layers: "window" layers attend to the last `window` tokens, "chunk"
    layers within blocks of `window` tokens, "full" ones to all; without `mixers` every layer of a model with a window is "window".
    `mlps`: a pattern too, false where a layer has a mixer but no MLP.
    `qk_norm`: norms of each head's queries and keys; `post_norms`: norms also behind attention and MLP.
    `mtp_layers`: multi-token prediction modules (DeepSeek-V3, arXiv 2412.19437, section 2.2): each joins the last hidden state with
    the embedding of the next token, runs a transformer layer and predicts one token further, with the model's own embedding and
    head.  They are no part of `parameters`, as authors count.
    Layers of `mixers` "mamba2" (arXiv 2405.21060) and "delta" (gated delta rule, arXiv 2412.06464) carry a state along the sequence:
    `ssm_heads` of `ssm_head_dim` (of values), keys and queries (B and C) of `ssm_state` in `ssm_groups`, and a convolution over
    `conv_width` tokens.  `attention_gate`: attention's output is gated by a projection as wide as the queries.
    `expert_groups`: equal groups of experts of which a token may use `groups_per_token` (node-limited routing, DeepSeek-V2, section
    2.2.2): it reaches fewer places where tokens cross the network once per node.
    `capacity_factor`: rows that an expert takes, in shares of an even distribution; fuller ones drop tokens, emptier ones are padded
    (GShard, arXiv 2006.16668); 0 = no token is dropped.
    `rotary_share`: part of each head that the rotary embedding turns (GPT-NeoX, arXiv 2204.06745, section 2.1.1); `rotary_scale`: what
    its cosines and sines are multiplied by (YaRN, arXiv 2309.00071, section 3.4), for which some kernels have no place.
    `positions` "relative_bias": a learned bias per distance and head (T5); "transformer_xl": sinusoids of the distance, projected
    once a layer and multiplied with the queries (Transformer-XL, arXiv 1901.02860).
    Encoder: `token_types` rows of a second embedding, `head_transform`: a dense layer and norm before the output, `pooler`: a dense
    layer on the first token.  Vision: `patch_inputs` numbers of a patch; `vocabulary` counts the classes.
    Encoder-decoder: `encoder_layers` beside the decoder's `layers`, and `target_length` tokens for the decoder.
    `architecture` "network": layers one by one (`simulator/workload/network.py`), as of convolutions; a sequence is an image.

    Low-rank adapters (LoRA, arXiv 2106.09685): with a `lora_rank` r everything is frozen but a pair of matrices of this rank beside each
    of `lora_modules` (query, key, value, output, gate, up, down; left out: all), in experts beside each one's; `lora_dropout`: each
    adapter drops some of its input.  `frozen_format` "nf4": frozen matrices of layers stand in 4 bits and are widened before each
    product (QLoRA, arXiv 2305.14314); "fp8": in the 8 bits in which products read them (Transformer Engine's fp8_model_init).
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
    clamped_gate: bool = False
    activation: Literal["", "gelu_new", "gelu_python"] = ""
    norm: Literal["layer_norm", "rms_norm"]
    positions: Literal["learned", "rotary", "alibi", "relative_bias", "transformer_xl", "none"]
    rotary_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    rotary_scale: Annotated[float, Field(gt=0, le=100)] = 1.0
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
    attention: Name = "standard"
    q_lora_rank: Part = 0
    kv_lora_rank: Part = 0
    qk_nope_head_dim: Part = 0
    qk_rope_head_dim: Part = 0
    v_head_dim: Part = 0
    window: Part = 0
    mixers: Annotated[tuple[Name, ...], Pattern, Field(max_length=10_000)] = ()
    mlps: Annotated[tuple[bool, ...], Pattern, Field(max_length=10_000)] = ()
    qk_norm: bool = False
    post_norms: bool = False
    mtp_layers: Annotated[int, Field(ge=0, le=64)] = 0
    ssm_heads: Part = 0
    ssm_head_dim: Part = 0
    ssm_groups: Part = 0
    ssm_state: Part = 0
    conv_width: Part = 0
    attention_gate: bool = False
    expert_groups: Part = 0
    groups_per_token: Part = 0
    capacity_factor: Annotated[float, Field(ge=0, le=100)] = 0.0
    token_types: Part = 0
    head_transform: bool = False
    pooler: bool = False
    patch_inputs: Part = 0
    encoder_layers: Part = 0
    target_length: Part = 0
    lora_rank: Annotated[int, Field(ge=0, le=10**5)] = 0
    lora_modules: Annotated[tuple[Adapted, ...], Pattern, Field(min_length=1, max_length=len(ADAPTED))] = ADAPTED
    lora_dropout: bool = False
    frozen_format: Literal["", "nf4", "fp8"] = ""
    network: Network | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        if data.get("architecture") == "network" and data.get("network"):
            return _of_network(data)
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
    def _check(self) -> ModelFields:
        if not self.head_dim:
            raise ValueError(
                f"hidden must be a multiple of heads, but {self.hidden} is none of {self.heads}; or give head_dim"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, but {self.heads} is none of {self.kv_heads}")
        if self.rotary_share < 1.0 and (self.positions != "rotary" or self.attention == "latent"):
            raise ValueError(
                f'rotary_share = {self.rotary_share} belongs to positions = "rotary" of standard attention; leave it out'
            )
        if self.rotary_scale != 1.0 and self.positions != "rotary":
            raise ValueError(
                f'rotary_scale = {self.rotary_scale} belongs to positions = "rotary", but positions = {self.positions!r}; leave it out'
            )
        self._check_experts()
        self._check_blocks()
        self._check_mixers()
        self._check_architecture()
        self._check_adapters()
        return self

    def _check_adapters(self) -> None:
        fields, names = type(self).model_fields, ("lora_modules", "lora_dropout", "frozen_format")
        given = [name for name in names if getattr(self, name) != fields[name].default]
        if given and not self.lora_rank:
            raise ValueError(f"{given[0]} belongs to adapters, but lora_rank = 0; give lora_rank or leave it out")
        if len(set(self.lora_modules)) < len(self.lora_modules):
            raise ValueError(f"lora_modules names a module twice: {list(self.lora_modules)}; name each once")

    def _check_architecture(self) -> None:
        for name, (architecture, always) in _FIELDS_OF.items():
            present = bool(getattr(self, name))
            if present and self.architecture != architecture:
                raise ValueError(
                    f'{name} belongs to architecture "{architecture}", but architecture = {self.architecture!r}; leave it out'
                )
            if always and not present and self.architecture == architecture:
                raise ValueError(f'architecture "{architecture}" needs {name}')
        if self.architecture != "transformer":
            named = [name for name in _DECODER_FIELDS if getattr(self, name)]
            named += ["attention"] if self.attention != "standard" else []
            if named:
                raise ValueError(
                    f'{named[0]} is modelled in decoders only (architecture "transformer"), but architecture = '
                    f"{self.architecture!r}; leave it out"
                )

    def _check_mixers(self) -> None:
        given = [name for name in _STATE_FIELDS if getattr(self, name)]
        from simulator.workload.blocks.mixer import MIXERS

        carried = {m for m in self.layer_mixers if m != "none" and MIXERS.get(m).state}
        if len(given) != (len(_STATE_FIELDS) if carried else 0):
            raise ValueError(
                f'{", ".join(_STATE_FIELDS)} go with layers that carry a state (mixers "mamba2" or "delta"), but given are '
                f"{given} and mixers = {list(self.mixers)}; give all or none"
            )
        if carried and self.ssm_heads % self.ssm_groups:
            raise ValueError(
                f"ssm_heads must be a multiple of ssm_groups, but {self.ssm_heads} is none of {self.ssm_groups}"
            )
        narrow = {"window", "chunk"} & set(self.layer_mixers)
        if bool(self.window) != bool(narrow):
            raise ValueError(
                'window goes with layers that have one (mixers "window" or "chunk"), but window = '
                f"{self.window} and mixers = {list(self.mixers)}; give both or neither"
            )
        if any(m == "none" and not mlp for m, mlp in zip(self.layer_mixers, self.layer_mlps, strict=True)):
            raise ValueError('a layer needs a mixer or an MLP, but mixers says "none" and mlps false of the same layer')

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
        if self.clamped_gate and not self.gated_mlp:
            raise ValueError("clamped_gate clamps what enters a gate, but gated_mlp = false; leave it out")
        if self.activation and self.gated_mlp:
            raise ValueError(
                f'activation = "{self.activation}" is written out in MLPs without a gate, but gated_mlp = true; leave it out'
            )
        if self.capacity_factor and not self.experts:
            raise ValueError(
                f"capacity_factor = {self.capacity_factor} belongs to a mixture of experts, but experts = 0; leave it out"
            )
        if bool(self.expert_groups) != bool(self.groups_per_token) or self.groups_per_token > self.expert_groups:
            raise ValueError(
                "groups_per_token of the expert_groups are used, at most all, but expert_groups = "
                f"{self.expert_groups} and groups_per_token = {self.groups_per_token}; give both or neither"
            )
        if self.expert_groups and (not self.experts or self.experts % self.expert_groups):
            raise ValueError(
                f"expert_groups must divide the experts, but {self.experts} / {self.expert_groups} is no whole number"
            )
        if self.experts and not any(self.moe_layers):
            raise ValueError(
                f"dense_layers = {self.dense_layers} and moe_every = {self.moe_every} leave none of the {self.layers} layers "
                "with experts; make them smaller or leave out experts"
            )

    def _check_blocks(self) -> None:
        """Architecture, attention and mixers are known by their files, and attention knows which fields go with it."""
        from simulator.workload.blocks.attention import ATTENTIONS
        from simulator.workload.blocks.mixer import MIXERS
        from simulator.workload.families import FAMILIES

        known = (
            ("architecture", self.architecture, [*FAMILIES.members]),
            ("attention", self.attention, [*ATTENTIONS.members]),
            *(("mixers", m, [*MIXERS.members, "none"]) for m in self.mixers),
        )
        for field, name, members in known:
            if name not in members:
                raise ValueError(f"{field}: {name!r} is not known; known: {', '.join(members)}")
        ATTENTIONS.get(self.attention).check(self)

    @property
    def moe_layers(self) -> tuple[bool, ...]:
        """Per layer, whether its MLP is a mixture of experts."""
        return tuple(self._sparse(i) and mlp for i, mlp in enumerate(self.layer_mlps))

    def _sparse(self, layer: int) -> bool:
        return self.experts > 0 and layer >= self.dense_layers and (layer + 1) % self.moe_every == 0

    @property
    def layer_mixers(self) -> tuple[str, ...]:
        """Per layer, what mixes its tokens."""
        pattern = self.mixers or (("window",) if self.window else ("full",))
        return tuple(pattern[i % len(pattern)] for i in range(self.layers))

    @property
    def layer_mlps(self) -> tuple[bool, ...]:
        """Per layer, whether it has an MLP."""
        return tuple(not self.mlps or self.mlps[i % len(self.mlps)] for i in range(self.layers))

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """Per layer, the name of its kind.

        >>> from simulator.workload.model import load_model
        >>> load_model("gpt_oss_20b").layer_kinds[:2]
        ('window moe layer', 'moe layer')
        """
        if self.network:
            return self.network.names[1:-1]
        stack = {"encoder": "encoder", "vision": "encoder", "encoder_decoder": "cross"}.get(self.architecture, "")
        encoder = tuple(self._sparse(i) for i in range(self.encoder_layers))
        return _names(encoder, self.layer_mixers, self.layer_mlps, self.moe_layers, stack)

    @property
    def depth(self) -> int:
        """Layers of all stacks."""
        return self.encoder_layers + self.layers

    @property
    def value_head_dim(self) -> int:
        """Width of a head's values: `v_head_dim` of latent attention, else `head_dim`."""
        return self.v_head_dim or self.head_dim

    @property
    def ssm_inner(self) -> int:
        """Inner width of a layer that carries a state."""
        return self.ssm_heads * self.ssm_head_dim

    @property
    def ssm_convolved(self) -> int:
        """Channels of its convolution: values, keys and queries."""
        return self.ssm_inner + 2 * self.ssm_groups * self.ssm_state
