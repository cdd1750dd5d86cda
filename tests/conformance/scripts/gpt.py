"""Megatron-core's own GPTModel with its local layers (no Transformer Engine), tensor and data parallel, on a CPU.

What it asks of a GPU at start is answered: its device, and the states of random numbers per rank, which a recording has no use for.
"""

import argparse
import contextlib

import torch
from llama import RMSNorm
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import random
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig

parser = argparse.ArgumentParser()
parser.add_argument("--tensor", type=int, default=1)
parser.add_argument("--pipeline", type=int, default=1)
parser.add_argument("--microbatches", type=int, default=8)
parser.add_argument("--tied", action="store_true")
parser.add_argument("--experts", type=int, default=0)
parser.add_argument("--expert-ranks", type=int, default=1)
parser.add_argument("--sequence", action="store_true")
parser.add_argument("--recompute", choices=("none", "full", "selective"), default="none")
parser.add_argument("--distributed-optimizer", action="store_true")
words = parser.parse_args()

# one kernel on a GPU, which on a CPU keeps more than plain operations do
torch.nn.RMSNorm = lambda normalized_shape, eps: RMSNorm(normalized_shape)
torch.cuda.current_device = lambda: "cpu"
torch.Tensor.cuda = lambda tensor, *rest, **options: tensor
for name in ("Stream", "Event", "current_stream", "stream"):
    setattr(torch.cuda, name, getattr(torch.cpu, name))
random.CudaRNGStatesTracker.fork = lambda tracker, name="": contextlib.nullcontext()
random._get_all_rng_states = lambda: ()
random._set_all_rng_states = lambda *states: None
parallel_state.initialize_model_parallel(
    words.tensor, words.pipeline, expert_model_parallel_size=words.expert_ranks, create_gloo_process_groups=False
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
config = TransformerConfig(
    num_layers=4,
    hidden_size=1024,
    num_attention_heads=16,
    num_query_groups=4,
    ffn_hidden_size=2816,
    gated_linear_unit=True,
    activation_func=torch.nn.functional.silu,
    add_bias_linear=False,
    normalization="RMSNorm",
    tensor_model_parallel_size=words.tensor,
    pipeline_model_parallel_size=words.pipeline,
    batch_p2p_sync=False,
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
    recompute_method="uniform" if words.recompute == "full" else None,
    recompute_num_layers=1 if words.recompute == "full" else None,
    **(experts if words.experts else {}),
)
model = GPTModel(
    config,
    get_gpt_layer_local_spec(normalization="RMSNorm", num_experts=words.experts or None),
    vocab_size=VOCABULARY,
    max_sequence_length=TOKENS,
    position_embedding_type="rope",
    share_embeddings_and_output_weights=words.tied,
    parallel_output=True,
    pre_process=parallel_state.is_pipeline_first_stage(),
    post_process=parallel_state.is_pipeline_last_stage(),
).bfloat16()  # as Megatron-LM's Float16Module: norms, too
model = DistributedDataParallel(
    config,
    DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=True,
        use_distributed_optimizer=words.distributed_optimizer,
        bucket_size=10**12,
    ),
    model,
)
places = torch.arange(TOKENS)[None]
mask = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool)


def forward(_, part):
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS))
    return part(tokens, places, mask, labels=tokens), lambda losses: (losses.mean(), {})


def step():
    model.zero_grad_buffer()
    if words.pipeline > 1:
        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=None,
            model=[model],
            num_microbatches=words.microbatches,
            seq_length=TOKENS,
            micro_batch_size=1,
        )
        return
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS))
    model(tokens, places, mask, labels=tokens).mean().backward()
    finalize_model_grads([model])
