"""Megatron-core's own GPTModel with its local layers (no Transformer Engine), in all its ways to split a model, on a CPU.

What it asks of a GPU at start is answered: its device, and the states of random numbers per rank, which a recording has no use for.
Of Transformer Engine three things stand in: a norm whose gradient is added up over sequence-parallel ranks, a linear
layer that all ranks have whole (of latents), and attention over parts of a sequence, without the messages of its ring.
"""

import argparse
import contextlib
from dataclasses import replace

import torch
from llama import RMSNorm
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer import optimizer as updates
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import random
from megatron.core.transformer import multi_latent_attention, torch_norm
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

parser = argparse.ArgumentParser()
for name in ("tensor", "context", "pipeline", "chunks", "expert-ranks"):
    parser.add_argument(f"--{name}", type=int, default=1)
parser.add_argument("--microbatches", type=int, default=8)
parser.add_argument("--latent", action="store_true")
parser.add_argument("--tied", action="store_true")
parser.add_argument("--experts", type=int, default=0)
parser.add_argument("--sequence", action="store_true")
parser.add_argument("--recompute", choices=("none", "full", "selective"), default="none")
parser.add_argument("--modules", default="core_attn", help="what selective recompute makes again")
parser.add_argument("--distributed-optimizer", action="store_true")
parser.add_argument("--update", action="store_true")
words = parser.parse_args()


def norm(kind, config, hidden_size, **rest):
    """Plain operations: one kernel on a GPU, which on a CPU keeps more than they do."""
    made = RMSNorm(hidden_size)
    made.weight.sequence_parallel = config.sequence_parallel
    return made


class Whole(torch.nn.Linear):
    """A linear layer of which every tensor-parallel rank has all, as Transformer Engine's with parallel_mode = "duplicated"."""

    def __init__(self, inputs, outputs, *, config, bias, **rest):
        super().__init__(inputs, outputs, bias=bias)
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, x):
        return super().forward(x), None


class Attention(DotProductAttention):
    """Its own unfused attention, told of latent heads' widths and of parts of a sequence, of which it sees those of this rank."""

    def __init__(self, config, *rest, k_channels=None, v_channels=None, **options):
        super().__init__(replace(config, context_parallel_size=1), *rest, **options)


torch_norm.WrappedTorchNorm.__new__ = norm
multi_latent_attention.TELinear = Whole
random.CheckpointWithoutOutput.__init__.__defaults__ = (None,)  # not in 8 bits, which it would ask Transformer Engine
torch.cuda.current_device = lambda: "cpu"
torch.Tensor.cuda = lambda tensor, *rest, **options: tensor
KINDS = {torch.float32: "torch.cuda.FloatTensor", torch.bfloat16: "torch.cuda.BFloat16Tensor"}
torch.Tensor.type = lambda tensor, *to: tensor.to(*to) if to else KINDS[tensor.dtype]


def here(make):
    """What it makes by name on a GPU, or in memory that is pinned, is made here."""
    return lambda *values, pin_memory=False, device=None, **options: make(*values, **options)


torch.tensor, torch.zeros = here(torch.tensor), here(torch.zeros)
for name in ("Stream", "Event", "current_stream", "stream"):
    setattr(torch.cuda, name, getattr(torch.cpu, name))
random.CudaRNGStatesTracker.fork = lambda tracker, name="": contextlib.nullcontext()
random._get_all_rng_states = lambda: ()
random._set_all_rng_states = lambda *states: None
parallel_state.initialize_model_parallel(
    words.tensor,
    words.pipeline,
    words.chunks if words.chunks > 1 else None,
    context_parallel_size=words.context,
    expert_model_parallel_size=words.expert_ranks,
    create_gloo_process_groups=False,
)

moe_utils.te_general_gemm = None  # Transformer Engine is missing
TOKENS, VOCABULARY = 2048, 32000
experts = {
    "num_moe_experts": words.experts,
    "expert_model_parallel_size": words.expert_ranks,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 1408,
    "moe_token_dispatcher_type": "alltoall",
    "moe_expert_capacity_factor": 1.0,
    "moe_pad_expert_input_to_capacity": True,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_aux_loss_coeff": 0.01,
}
latents = {
    "q_lora_rank": 384,
    "kv_lora_rank": 256,
    "qk_head_dim": 64,
    "qk_pos_emb_head_dim": 32,
    "v_head_dim": 64,
    "rope_type": "rope",
    "qk_layernorm": True,
    "multi_latent_attention": True,
}
config = (MLATransformerConfig if words.latent else TransformerConfig)(
    num_layers=4,
    hidden_size=1024,
    num_attention_heads=16,
    num_query_groups=16 if words.latent else 4,
    ffn_hidden_size=2816,
    gated_linear_unit=True,
    activation_func=torch.nn.functional.silu,
    add_bias_linear=False,
    normalization="RMSNorm",
    tensor_model_parallel_size=words.tensor,
    pipeline_model_parallel_size=words.pipeline,
    virtual_pipeline_model_parallel_size=words.chunks if words.chunks > 1 else None,
    context_parallel_size=words.context,
    batch_p2p_sync=False,
    deallocate_pipeline_outputs=True,  # as Megatron-LM asks for it
    finalize_model_grads_func=finalize_model_grads,
    sequence_parallel=words.sequence,
    use_cpu_initialization=True,
    params_dtype=torch.bfloat16,
    bf16=True,
    pipeline_dtype=torch.bfloat16,
    bias_dropout_fusion=False,
    masked_softmax_fusion=False,
    gradient_accumulation_fusion=False,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    recompute_granularity=None if words.recompute == "none" else words.recompute,
    recompute_modules=words.modules.split(",") if words.recompute == "selective" else None,
    recompute_method="uniform" if words.recompute == "full" else None,
    recompute_num_layers=1 if words.recompute == "full" else None,
    **(experts if words.experts else {}),
    **(latents if words.latent else {}),
)
layer = get_gpt_layer_local_spec(
    normalization="RMSNorm",
    num_experts=words.experts or None,
    multi_latent_attention=words.latent,
    qk_layernorm=words.latent,
)
attention = layer.submodules.self_attention.submodules
attention.core_attention = Attention
if words.latent:
    attention.linear_q_down_proj = attention.linear_kv_down_proj = Whole


def chunk(number):
    """A part of the model of this pipeline rank, ready to reduce its gradients."""
    place = {"vp_stage": number} if words.chunks > 1 else {}
    part = GPTModel(
        config,
        layer,
        vocab_size=VOCABULARY,
        max_sequence_length=TOKENS,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=words.tied,
        parallel_output=True,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, **place),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, **place),
        **place,
    ).bfloat16()  # as Megatron-LM's Float16Module: norms, too
    return DistributedDataParallel(
        config,
        DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=True,
            use_distributed_optimizer=words.distributed_optimizer,
            bucket_size=10**12,
        ),
        part,
        disable_bucketing=number > 0,
    )


model = [chunk(number) for number in range(words.chunks)]
optimizer = None
if words.update:
    updates.get_grad_norm_fp32 = lambda *rest, **options: 0.0  # by Apex; its plain form makes tensors of tensors' data
    settings = OptimizerConfig(lr=1e-4, bf16=True, use_distributed_optimizer=words.distributed_optimizer, clip_grad=0.0)
    optimizer = get_megatron_optimizer(settings, model, use_gloo_process_groups=False)
OWN = TOKENS // words.context
places = torch.arange(OWN)[None]
mask = torch.ones(1, 1, OWN, OWN, dtype=torch.bool)


def forward(_, part):
    tokens = torch.randint(0, VOCABULARY, (1, OWN))
    return part(tokens, places, mask, labels=tokens), lambda losses: (losses.mean(), {})


def step():
    for part in model:
        part.zero_grad_buffer()
    if words.pipeline > 1:
        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=[None] * words.chunks if words.chunks > 1 else None,
            model=model,
            num_microbatches=words.microbatches,
            seq_length=TOKENS,
            micro_batch_size=1,
        )
        return
    tokens = torch.randint(0, VOCABULARY, (1, OWN))
    model[0](tokens, places, mask, labels=tokens).mean().backward()
    finalize_model_grads(model)
    if optimizer:
        optimizer.step()
