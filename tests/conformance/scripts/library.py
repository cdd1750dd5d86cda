"""Llama and Qwen3 of the library `transformers`, made ready for FSDP by `accelerate`; the words choose."""

import argparse

import torch
import transformers
from accelerate import Accelerator, FullyShardedDataParallelPlugin

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=("llama", "qwen3"), default="llama")
parser.add_argument("--version", type=int, choices=(1, 2), default=1)
parser.add_argument("--recompute", action="store_true")
words = parser.parse_args()

TOKENS, VOCABULARY = 2048, 32000
kind = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[words.model]
config = kind(
    num_hidden_layers=4,
    hidden_size=1024,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=64,
    intermediate_size=2816,
    vocab_size=VOCABULARY,
    max_position_embeddings=TOKENS,
    tie_word_embeddings=False,
    use_cache=False,
    attn_implementation="sdpa",
)
model = transformers.AutoModelForCausalLM.from_config(config)
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=words.version,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=[type(model.model.layers[0]).__name__],
    activation_checkpointing=words.recompute,
    mixed_precision_policy="bf16",
    use_orig_params=True,
)
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer = accelerator.prepare(model, optimizer)


def step():
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS))
    accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
    optimizer.step()
    optimizer.zero_grad()
