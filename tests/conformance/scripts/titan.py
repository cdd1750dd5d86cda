# ruff: noqa: E402
"""torchtitan's own Llama 3, Qwen3 and DeepSeek-V3, split by its own functions, pipelines too.

Attention is PyTorch's, for its flex attention wants a compiler; experts get as many tokens each, for that is data.
"""

import argparse
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F

torch._utils._get_available_device_type = lambda: "cpu"  # read when torchtitan is imported

from torchtitan.components.loss import cross_entropy_loss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.distributed.utils import set_spmd_backend
from torchtitan.models import deepseek_v3, llama3, qwen3
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher

parser = argparse.ArgumentParser()
for name in ("copies", "tensor", "context", "pipeline", "expert-ranks"):
    parser.add_argument(f"--{name}", type=int, default=1)
parser.add_argument("--schedule", default="1F1B")
parser.add_argument("--microbatches", type=int, default=8)
parser.add_argument("--model", choices=("llama3", "qwen3", "deepseek_v3"), default="llama3")
parser.add_argument("--recompute", choices=("none", "full", "selective"), default="none")
parser.add_argument("--apart", action="store_true")
words = parser.parse_args()
set_spmd_backend("partial_dtensor")

TOKENS, VOCABULARY, HIDDEN, HEADS, GROUPS, LAYERS, WIDTH = 2048, 32000, 1024, 16, 4, 4, 2816
parallelism = ParallelismConfig(
    data_parallel_replicate_degree=words.copies,
    tensor_parallel_degree=words.tensor,
    context_parallel_degree=words.context,
    pipeline_parallel_degree=words.pipeline,
    pipeline_parallel_schedule=words.schedule,
    expert_parallel_degree=words.expert_ranks,
    spmd_backend="partial_dtensor",
)
code = {"llama3": llama3, "qwen3": qwen3, "deepseek_v3": deepseek_v3}[words.model]
code.get_attention_config = lambda backend: ScaledDotProductAttention.Config()


def scaled_dot_product_attention(query, key, value, **options):
    """What PyTorch's function of this name calls on a GPU: context parallelism knows no kernel of a CPU."""
    return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True)[0]


def rms_norm(x, shape, weight=None, eps=None):
    """One kernel on a GPU, which on a CPU keeps more than plain operations do."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + (eps or 1e-6))).type_as(x) * weight


F.rms_norm = rms_norm
if words.context > 1:
    F.scaled_dot_product_attention = scaled_dot_product_attention


counted = AllToAllTokenDispatcher._sync_token_count_exchange


def dealt_out_evenly(dispatcher, local, of_all, ranks):
    """Its count of the tokens that go to each rank and come from it, with the numbers that even routing has."""
    numbers, _, _ = counted(dispatcher, local, of_all, ranks)
    rows = [TOKENS // words.context // (words.tensor if words.tensor > 1 else 1) * dispatcher.top_k // ranks] * ranks
    return numbers, rows, rows


AllToAllTokenDispatcher._sync_token_count_exchange = dealt_out_evenly


def config():
    turns = code.CosSinRoPE if words.model == "qwen3" else code.ComplexRoPE
    shared = {
        "n_layers": LAYERS, "dim": HIDDEN, "n_heads": HEADS, "n_kv_heads": GROUPS, "hidden_dim": WIDTH,
        "rope": turns.Config(dim=HIDDEN // HEADS, max_seq_len=TOKENS), "attn_backend": "", "fuse_qkv": not words.apart,
    }  # fmt: skip
    ends = {
        "tok_embeddings": code.Embedding.Config(
            num_embeddings=VOCABULARY, embedding_dim=HIDDEN, param_init=code._EMBEDDING_INIT
        ),
        "norm": code.RMSNorm.Config(normalized_shape=HIDDEN, param_init=code._NORM_INIT),
        "lm_head": code.Linear.Config(in_features=HIDDEN, out_features=VOCABULARY, param_init=code._LINEAR_INIT),
    }
    if words.model == "deepseek_v3":
        layers = deepseek_v3._build_dsv3_layers(
            n_layers=LAYERS, n_dense_layers=1, dim=HIDDEN, n_heads=HEADS, q_lora_rank=384, kv_lora_rank=256, qk_nope_head_dim=64,
            qk_rope_head_dim=32, v_head_dim=64, mscale=1.0, dense_hidden_dim=WIDTH, moe_hidden_dim=512, num_experts=16,
            num_shared_experts=1, router_top_k=4, router_score_func="sigmoid", router_route_norm=True, attn_backend="",
            moe_comm_backend="standard", non_blocking_capacity_factor=None, rope=code.ComplexRoPE.Config(dim=32, max_seq_len=TOKENS),
        )  # fmt: skip
        return deepseek_v3.DeepSeekV3Model.Config(
            dim=HIDDEN, vocab_size=VOCABULARY, layers=layers, mtp_layers=[], **ends
        )
    if words.model == "llama3":
        return llama3.Llama3Model.Config(
            dim=HIDDEN, vocab_size=VOCABULARY, layers=llama3._build_llama3_layers(**shared), **ends
        )
    return qwen3.Qwen3Model.Config(
        dim=HIDDEN, vocab_size=VOCABULARY, layers=qwen3._build_qwen3_layers(head_dim=HIDDEN // HEADS, **shared), **ends
    )


shape = config()
shape.update_from_config(config=SimpleNamespace(parallelism=parallelism))
with torch.device("meta" if words.pipeline > 1 else "cpu"):  # stages are copies of parts of it
    model = shape.build()
split = {
    "llama3": llama3.parallelize_llama, "qwen3": qwen3.parallelize_qwen3, "deepseek_v3": deepseek_v3.parallelize_deepseekv3,
}[words.model]  # fmt: skip
dims = ParallelDims.from_config(parallelism, dist.get_world_size())
dims.build_mesh()
options = {
    "parallel_dims": dims,
    "training": TrainingConfig(seq_len=TOKENS, local_batch_size=words.microbatches if words.pipeline > 1 else 1),
    "parallelism": parallelism,
    "compile_config": CompileConfig(enable=False),
    "ac_config": {"none": None, "full": FullAC.Config(), "selective": SelectiveAC.Config()}[words.recompute],
    "dump_folder": "",
}
if words.pipeline > 1:
    schedule, parts, first, last = pipeline_llm(
        model, **options, device=torch.device("cpu"), model_config=shape, parallelize_fn=split,
        loss_fn=lambda logits, tokens: (cross_entropy_loss(logits, tokens), {}),
    )  # fmt: skip
    for part in parts:
        part.to_empty(device="cpu")
else:
    split(model, **options)
    parts = [model]
optimizer = torch.optim.AdamW([parameter for part in parts for parameter in part.parameters()])


def pipe(tokens, places):
    """As torchtitan's trainer does it."""
    target = {"target": tokens, "losses": []} if last else {}
    schedule.step(*([tokens] if first else []), positions=places, **target, return_outputs=False)


def step():
    tokens = torch.randint(0, VOCABULARY, (options["training"].local_batch_size, TOKENS // words.context))
    places = torch.arange(TOKENS // words.context).expand_as(tokens)
    if words.pipeline > 1:
        pipe(tokens, places)
    else:
        cross_entropy_loss(model(tokens, places), tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
