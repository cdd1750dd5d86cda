"""A Llama of the library `transformers` trained by its `Trainer`, under DistributedDataParallel, FSDP1 or FSDP2; a whole script."""

import argparse
import tempfile

import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("--data", choices=("ddp", "fsdp1", "fsdp2"), default="ddp")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--recompute", choices=("none", "reentrant", "not_reentrant"), default="none")
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--vocabulary", type=int, default=32000)
words = parser.parse_args()

TOKENS = 2048
config = transformers.LlamaConfig(
    num_hidden_layers=words.layers,
    hidden_size=1024,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=64,
    intermediate_size=2816,
    vocab_size=words.vocabulary,
    max_position_embeddings=TOKENS,
    tie_word_embeddings=False,
    use_cache=False,
    attn_implementation="sdpa",
)
model = transformers.AutoModelForCausalLM.from_config(config)
sharded = {}
if words.data != "ddp":
    sharded = {
        "fsdp": True,
        "fsdp_config": {
            "version": int(words.data[-1]),
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
            "sync_module_states": False,
        },
    }


class Sequences(torch.utils.data.Dataset):
    """As many as it takes, all of one length."""

    def __len__(self):
        return 4096

    def __getitem__(self, place):
        tokens = torch.zeros(TOKENS, dtype=torch.long)
        return {"input_ids": tokens, "labels": tokens}


arguments = transformers.TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    bf16=True,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=words.accumulate,
    gradient_checkpointing=words.recompute != "none",
    gradient_checkpointing_kwargs={"use_reentrant": words.recompute == "reentrant"},
    max_steps=3,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    **sharded,
)
trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Sequences())
trainer.train()
