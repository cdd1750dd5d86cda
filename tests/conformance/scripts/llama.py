"""A Llama in plain PyTorch, with the names of torchtitan's: what the scripts beside it train."""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, HIDDEN, WIDTH, HEADS, GROUPS, LAYERS, TOKENS = 32000, 1024, 2816, 16, 4, 4, 2048


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return y.type_as(x) * self.weight


class Attention(nn.Module):
    def __init__(self, hidden, heads, groups):
        super().__init__()
        self.width = hidden // heads
        self.heads, self.groups = heads, groups
        self.wq = nn.Linear(hidden, heads * self.width, bias=False)
        self.wk = nn.Linear(hidden, groups * self.width, bias=False)
        self.wv = nn.Linear(hidden, groups * self.width, bias=False)
        self.wo = nn.Linear(heads * self.width, hidden, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (w(x).view(b, t, -1, self.width).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        share = q.shape[1] // k.shape[1]
        k, v = (y.repeat_interleave(share, dim=1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.w1 = nn.Linear(hidden, width, bias=False)
        self.w2 = nn.Linear(width, hidden, bias=False)
        self.w3 = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, hidden, width, heads, groups):
        super().__init__()
        self.attention = Attention(hidden, heads, groups)
        self.feed_forward = FeedForward(hidden, width)
        self.attention_norm, self.ffn_norm = RMSNorm(hidden), RMSNorm(hidden)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, vocabulary=VOCABULARY, hidden=HIDDEN, width=WIDTH, heads=HEADS, groups=GROUPS, layers=LAYERS):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Block(hidden, width, heads, groups) for _ in range(layers))
        self.norm = RMSNorm(hidden)
        self.output = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def loss_of(model, batch=None):
    batch = torch.randint(0, VOCABULARY, (1, TOKENS)) if batch is None else batch
    return F.cross_entropy(model(batch).float().flatten(0, 1), batch.flatten())


def build():
    return Llama(), torch.zeros(1, TOKENS, dtype=torch.long)
