# ruff: noqa: E402
"""torchtitan's own Llama 3 and Qwen3, split by its own functions; attention is PyTorch's, for its flex attention wants a compiler."""

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
from torchtitan.distributed.utils import set_spmd_backend
from torchtitan.models import llama3, qwen3
from torchtitan.models.common.attention import ScaledDotProductAttention

parser = argparse.ArgumentParser()
for name in ("copies", "tensor", "context"):
    parser.add_argument(f"--{name}", type=int, default=1)
parser.add_argument("--model", choices=("llama3", "qwen3"), default="llama3")
parser.add_argument("--recompute", choices=("none", "full", "selective"), default="none")
parser.add_argument("--apart", action="store_true")
words = parser.parse_args()
set_spmd_backend("partial_dtensor")

TOKENS, VOCABULARY, HIDDEN, HEADS, GROUPS, LAYERS, WIDTH = 2048, 32000, 1024, 16, 4, 4, 2816
parallelism = ParallelismConfig(
    data_parallel_replicate_degree=words.copies,
    tensor_parallel_degree=words.tensor,
    context_parallel_degree=words.context,
    spmd_backend="partial_dtensor",
)
code = {"llama3": llama3, "qwen3": qwen3}[words.model]
code.get_attention_config = lambda backend: ScaledDotProductAttention.Config()


def scaled_dot_product_attention(query, key, value, **options):
    """What PyTorch's function of this name calls on a GPU: context parallelism knows no kernel of a CPU."""
    return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True)[0]


if words.context > 1:
    F.scaled_dot_product_attention = scaled_dot_product_attention


def config():
    turns = code.ComplexRoPE if words.model == "llama3" else code.CosSinRoPE
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
    if words.model == "llama3":
        return llama3.Llama3Model.Config(
            dim=HIDDEN, vocab_size=VOCABULARY, layers=llama3._build_llama3_layers(**shared), **ends
        )
    return qwen3.Qwen3Model.Config(
        dim=HIDDEN, vocab_size=VOCABULARY, layers=qwen3._build_qwen3_layers(head_dim=HIDDEN // HEADS, **shared), **ends
    )


shape = config()
shape.update_from_config(config=SimpleNamespace(parallelism=parallelism))
model = shape.build()
split = {"llama3": llama3.parallelize_llama, "qwen3": qwen3.parallelize_qwen3}[words.model]
dims = ParallelDims.from_config(parallelism, dist.get_world_size())
dims.build_mesh()
split(
    model,
    parallel_dims=dims,
    training=TrainingConfig(seq_len=TOKENS),
    parallelism=parallelism,
    compile_config=CompileConfig(enable=False),
    ac_config={"none": None, "full": FullAC.Config(), "selective": SelectiveAC.Config()}[words.recompute],
    dump_folder="",
)
optimizer = torch.optim.AdamW(model.parameters())


def step():
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS // words.context))
    loss = cross_entropy_loss(model(tokens, torch.arange(TOKENS // words.context)[None]), tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
