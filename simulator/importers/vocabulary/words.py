"""Free text of tables that no entry of names.toml matches whole, understood by its words."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from simulator.plan.recompute_policy import RecomputePolicy
from simulator.specs import load_all, names

__all__ = [
    "first_said",
    "is_pretraining",
    "kernel_by_words",
    "precision_by_words",
    "recompute_by_words",
    "recompute_policy",
    "schedule_by_words",
    "sparse_layers",
    "stages_of",
    "trains_all_weights",
    "zero_stage",
]

_KERNELS = (
    (r"unfused|eager|non-?flash|(no|without)[ -]flash|math", "unfused"),
    (r"cudnn|transformer ?engine|\bte\b|\bck\b|aiter", "te"),
    (r"sdpa|flex", "sdpa"),
    (r"(flash|fa)[a-z_ -]*v?4", "te"),
    (r"(flash|fa)[a-z_ -]*v?3", "flash3"),
    (r"(flash|fa)[a-z_ -]*v?1|xformers|memory.efficient", "flash1"),
    (r"flash|\bfa", "flash2"),
)
_RECOMPUTE = (
    (r"^(0|false|no\b|none|off|disabled|without)", "none"),
    (r"selective|\bsac\b|partial|attention only|core.?attn|op[ -]level|per[ -]op", "selective"),
    (r"^(1|true|yes|on)$|full|every|all layers|whole|checkpoint|save_|uniform|block", "full"),
)
"""`save_...`: XLA's policies that keep the named products of a layer and make the rest again."""
_PRECISIONS = (
    (r"mx.?fp8|fp8.?mx", "mxfp8"),
    (r"mx.?fp4|fp4.?mx", "mxfp4"),
    (r"fp4", "nvfp4"),
    (r"fp8|float8|e4m3", "fp8"),
    (r"\bint8\b|\baqt\b", "int8"),
    (r"(pure|full|true|all)[ -_](bf16|bfloat16)|(bf16|bfloat16)[ -_]\(?(pure|true|only)", "bf16_true"),
    (r"bf16|bfloat16", "bf16"),
    (r"fp16|float16|half", "fp16"),
    (r"tf32", "tf32"),
    (r"fp32|float32", "fp32"),
)
_SCHEDULES = (
    (r"non-?\s?interleaved", "one_f_one_b"),
    (r"interleav|virtual", "interleaved_1f1b"),
    (r"dualpipe-?\s?v", "dualpipev"),
    (r"dualpipe", "dualpipe"),
    (r"zb-?v|zero.?bubble.?v", "zbv"),
    (r"zb-?(h)?2|zero.?bubble.*2", "zb_h2"),
    (r"zero.?bubble|\bzb", "zb_h1"),
    (r"gpipe|afab|all.?forward|fill", "gpipe"),
    (r"1f1b|pipedream.?flush", "one_f_one_b"),
)


def first_said(patterns: Iterable[tuple[str, str]], said: str) -> str | None:
    """Return the name beside the first pattern that a text holds, in whatever case; None where it holds none."""
    return next((name for pattern, name in patterns if re.search(pattern, said.lower())), None)


def kernel_by_words(said: str) -> str | None:
    """Return the attention kernel that a text names; libraries come before generations of FlashAttention.

    >>> kernel_by_words("CK v3 fused"), kernel_by_words("FlashAttention-3")
    ('te', 'flash3')
    """
    return first_said(_KERNELS, said)


def precision_by_words(said: str) -> str | None:
    """Return the number format of the products that a text names; the narrowest, for mixed precision keeps the wider ones elsewhere.

    >>> precision_by_words("fp32+fp8"), precision_by_words("bf16 (fp32 master weights)"), precision_by_words("pure bf16")
    ('fp8', 'bf16', 'bf16_true')
    """
    return first_said(_PRECISIONS, said)


def recompute_by_words(said: str) -> str | None:
    """Return none, selective or full.

    >>> recompute_by_words("Full (every layer)"), recompute_by_words("selective (attention)")
    ('full', 'selective')
    """
    return first_said(_RECOMPUTE, said)


def recompute_policy(said: str) -> str | None:
    """Return the recompute policy that a text names behind the word policy, or by a name that is no plain word.

    >>> recompute_policy("full remat_policy=minimal_flash"), recompute_policy("save_qkv_proj"), recompute_policy("minimal")
    ('minimal_with_context', 'save_qkv_proj', None)
    """
    plain = said.lower()
    named = re.findall(r"policy\W+([a-z0-9_]+)", plain) + re.findall(r"[a-z0-9]+(?:_[a-z0-9]+)+", plain)
    known = {
        alias: policy.name
        for policy in load_all("recompute_policies", RecomputePolicy).values()
        for alias in policy.aliases
    }
    known |= {name: name for name in names("recompute_policies")}
    return next((known[name] for name in named if name in known), None)


def schedule_by_words(said: str) -> str | None:
    """Return the pipeline schedule that a text describes.

    >>> schedule_by_words("1F1B (non-interleaved)"), schedule_by_words("zero bubble")
    ('one_f_one_b', 'zb_h1')
    """
    return first_said(_SCHEDULES, said)


def zero_stage(said: str) -> int | None:
    """Return the stage of ZeRO that a text names; None where it names none.

    >>> zero_stage("ZeRO-1"), zero_stage("FSDP"), zero_stage("0"), zero_stage("everything")
    (1, 3, 0, None)
    """
    plain = said.lower()
    digit = re.search(r"\d", plain)
    if digit:
        stage = re.fullmatch(r"(?:zero|stage|fsdp|z|deepspeed|\W)*(\d)(?:\.0+)?(?:\W.*)?", plain)
        return int(stage.group(1)) if stage else None
    if re.search(r"fsdp|hsdp|full.?shard|hybrid.?shard", plain):
        return 3
    if "distributed optimizer" in plain or "shard_grad" in plain:
        return 1 if "optimizer" in plain else 2
    return 0 if plain in ("", "none", "no", "ddp", "off", "false") else None


def is_pretraining(said: str) -> bool:
    """Whether a task is pretraining, which a blank means too.

    >>> is_pretraining("Pre-training (synthetic)"), is_pretraining("lora")
    (True, False)
    """
    plain = re.sub(r"[^a-z]", "", said.lower())
    return plain in ("", "train", "training") or plain.startswith("pretrain")


def trains_all_weights(said: str) -> bool:
    """Whether a task is fine-tuning of all weights, which holds in memory what pretraining does.

    >>> trains_all_weights("SFT (full)"), trains_all_weights("qlora"), trains_all_weights("dpo")
    (True, False, False)
    """
    plain = said.lower()
    return bool(re.search(r"\bsft\b|full|fine-?tun|instruct", plain)) and not re.search(
        r"lora|dora|peft|adapter|dpo|ppo|grpo", plain
    )


def sparse_layers(said: str) -> tuple[int, int] | None:
    """Return (dense layers at the beginning, every how many-th layer from there on has experts), from Megatron's --moe-layer-freq.

    None where the text is none, or the layers with experts do not follow each other evenly.

    >>> sparse_layers("([0]*3+[1]*12)"), sparse_layers("([0]+[1])*6"), sparse_layers("2")
    ((3, 1), (1, 2), (0, 2))
    """
    plain = said.replace(" ", "")
    if plain.isdigit() and int(plain) > 0:
        return 0, int(plain)
    whole = re.fullmatch(r"\(?((?:\[[01]\](?:\*\d{1,4})?\+?)+)\)?(?:\*(\d{1,4}))?", plain)
    if whole is None:
        return None
    parts = re.findall(r"\[([01])\](?:\*(\d+))?", whole.group(1))
    once = "".join(bit * int(times or 1) for bit, times in parts)
    places = [i for i, bit in enumerate(once * int(whole.group(2) or 1)) if bit == "1"]
    steps = {b - a for a, b in itertools.pairwise(places)}
    return (places[0], min(steps, default=1)) if places and len(steps) <= 1 else None


def stages_of(layout: str) -> list[str] | None:
    """Return the letters of every stage of Megatron's --pipeline-model-parallel-layout; None where the text is none.

    E is the embedding, t a decoder layer, m a prediction module, L the loss; x*n and (...)*n repeat, | ends a stage.

    >>> stages_of("Et*2|(tt|)*2L"), stages_of("Et*3|(t*4|)*2mL"), stages_of("not a layout")
    (['Ett', 'tt', 'tt', 'L'], ['Ettt', 'tttt', 'tttt', 'mL'], None)
    """
    text = re.sub(r"[\s,]", "", layout)
    while len(text) <= _MOST_STAGES and (found := _REPEATED.search(text)):
        once = found.group(1) or found.group(2) or ""
        text = text[: found.start()] + once * int(found.group(3)) + text[found.end() :]
    if len(text) > _MOST_STAGES or not re.fullmatch(r"[EtmL|]+", text):
        return None
    return text.split("|")


_MOST_STAGES = 4096
_REPEATED = re.compile(r"(?:\(([^()]*)\)|([EtmL]))\*(\d{1,4})")
