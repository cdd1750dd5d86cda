"""Eager training codes of published runs: a Llama in plain PyTorch as torchtitan of 2024 has it, or the library `transformers` itself."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

parser = argparse.ArgumentParser()
parser.add_argument("--code", choices=("titan", "llama", "phi3"), default="titan")
for name in ("layers", "hidden", "heads", "groups", "width", "vocabulary", "tokens", "batch"):
    parser.add_argument(f"--{name}", type=int, required=True)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--recompute", choices=("none", "full", "operators", "alternate"), default="none")
parser.add_argument("--release", help="of PyTorch in the run, by which its attention kernel goes")
words = parser.parse_args()
torch.__version__ = words.release or torch.__version__


def rotated(x, turns):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.width = words.hidden // words.heads
        self.wq = nn.Linear(words.hidden, words.heads * self.width, bias=False)
        self.wk = nn.Linear(words.hidden, words.groups * self.width, bias=False)
        self.wv = nn.Linear(words.hidden, words.groups * self.width, bias=False)
        self.wo = nn.Linear(words.heads * self.width, words.hidden, bias=False)

    def forward(self, x, turns):
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, -1, self.width) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, turns), rotated(k, turns)
        share = words.heads // words.groups
        if share > 1:
            k, v = (
                y[:, :, :, None, :].expand(b, t, -1, share, self.width).reshape(b, t, -1, self.width) for y in (k, v)
            )
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).contiguous().view(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(words.hidden, words.width, bias=False)
        self.w2 = nn.Linear(words.width, words.hidden, bias=False)
        self.w3 = nn.Linear(words.hidden, words.width, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(words.hidden), nn.RMSNorm(words.hidden)

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(words.vocabulary, words.hidden)
        self.layers = nn.ModuleList(Block() for _ in range(words.layers))
        self.norm = nn.RMSNorm(words.hidden)
        self.output = nn.Linear(words.hidden, words.vocabulary, bias=False)
        width = words.hidden // words.heads // 2
        self.register_buffer("turns", torch.zeros(1, words.tokens, 1, width, dtype=torch.complex64), persistent=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.turns)
        return self.output(self.norm(x))


def kept():
    """torchtitan's per-operator recompute: products, every second of them, attention and messages are kept."""
    seen = {"recompute": 0, "forward": 0}
    saves = {
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
    }

    def policy(context, function, *arguments, **options):
        side = "recompute" if context.is_recompute else "forward"
        if function == torch.ops.aten.mm.default:
            seen[side] += 1
            return CheckpointPolicy.MUST_SAVE if seen[side] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if function in saves else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def titan():
    model = Llama()
    for number, block in list(model.layers.named_children()):
        if words.recompute == "full" or (words.recompute == "alternate" and int(number) % 2 == 0):
            model.layers.register_module(number, checkpoint_wrapper(block, preserve_rng_state=False))
        elif words.recompute == "operators":
            wrapped = checkpoint_wrapper(block, context_fn=kept, preserve_rng_state=False)
            model.layers.register_module(number, wrapped)
    if dist.get_world_size() > 1:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for number, block in enumerate(model.layers):
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=number < words.layers - 1)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def library():
    import transformers

    shape = {
        "num_hidden_layers": words.layers, "hidden_size": words.hidden, "num_attention_heads": words.heads,
        "num_key_value_heads": words.groups, "intermediate_size": words.width, "vocab_size": words.vocabulary,
        "max_position_embeddings": words.tokens, "use_cache": False,
    }  # fmt: skip
    kind = transformers.LlamaConfig if words.code == "llama" else transformers.Phi3Config
    special = {} if words.code == "llama" else {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = kind(**shape, **special, attn_implementation="sdpa", dtype=torch.bfloat16)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if words.recompute == "full":
        model.gradient_checkpointing_enable({"use_reentrant": True})  # as before transformers 5
    return model.train()


model = titan() if words.code == "titan" else library()
optimizer = torch.optim.AdamW(model.parameters(), fused=True if words.code == "titan" else None)


def step():
    for _ in range(words.accumulate):
        tokens = torch.randint(0, words.vocabulary, (words.batch, words.tokens))
        if words.code == "titan":
            loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten(0, 1))
        else:
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
