"""Write plans.jsonl and refusals.jsonl: plans that meet pairs of all choices, and plans that each break a rule in a way of its own.

`python -m tests.replay.make_plans` draws plans at random, mostly of defaults, around a pair of choices that no plan has met yet.  The files
are kept in the repository, so that every tree runs the same plans whatever its rules are.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

from simulator.errors import PlanError, SimulatorError
from simulator.lowering.resolve.resolved_plan import resolve
from simulator.simulation import simulate
from simulator.specs import names
from tests.properties.test_every_combination import FAMILIES
from tests.replay.cases import PLANS, REFUSALS, made_plan

CLUSTERS = (
    "dgx_h100", "dgx_a100", "v100_dgx1", "p100_dgx1", "a40_x8", "rtx_4090_x4", "hgx_b200", "gb200_nvl72", "mi300x_roce", "tpu_v4_pod",
    "alps", "hgx_h20",
)  # fmt: skip
SCHEDULES = (
    "gpipe", "interleaved_1f1b", "breadth_first", "zb_h1", "zb_h2", "zbv", "v_half", "v_min", "chimera", "chimera_doubling",
    "gems", "dualpipe", "dualpipev", "hanayo", "bitpipe", "seq1f1b", "terapipe", "slimpipe", "combined_1f1b", "pipedream",
    "pipedream_2bw", "looped_bfs",
)  # fmt: skip
FIELDS: dict[str, tuple[Any, ...]] = {
    "plan.tensor_parallel": (2, 4),
    "plan.context_parallel": (2, 4),
    "plan.context_parallel_kind": ("ring", "all_gather", "ulysses", "hybrid", "ring_self_attention"),
    "plan.context_parallel_inner": (2,),
    "plan.pipeline_parallel": (2, 4),
    "plan.expert_parallel": (2, 4),
    "plan.expert_tensor_parallel": (1,),
    "plan.expert_exchange": ("all_to_all", "once_per_node", "einsum"),
    "plan.expert_group_size": (64, 256),
    "plan.expert_loop": ("none", "modules", "slices"),
    "plan.expert_permute_fusion": (True, False),
    "plan.expert_imbalance": (1.5,),
    "plan.sequence_parallel": (True,),
    "plan.layout": ("whole_vocabulary", "summa_2d", "tesseract", "cubic_3d"),
    "plan.tensor_mesh": ([2, 2], [2, 2, 1], [8, 8, 1]),
    "plan.tensor_parallel_splits": (4,),
    "plan.chunks_per_rank": (2,),
    "plan.microbatch_size": (2,),
    "plan.schedule": SCHEDULES,
    "plan.zero_stage": (1, 2, 3),
    "plan.shard_size": (2, 4),
    "plan.shard_across_experts": (True,),
    "plan.secondary_shard_size": (2,),
    "plan.recompute": ("none", "selective", "operators", "full", "revolve"),
    "plan.recompute_modules": (
        ["core_attn", "layernorm"], ["mla_up_proj"], ["mlp"], ["moe", "moe_act"], ["moe_act"], ["shared_experts", "layernorm"],
    ),
    "plan.recompute_policy": tuple(names("recompute_policies")),
    "plan.recompute_method": ("block", "every", "uniform", "recursive"),
    "plan.recompute_layers": (1, 2, "auto"),
    "plan.recompute_checkpoints": (1, 2),
    "plan.partition_activations": (True, False),
    "plan.attention": ("unfused", "chunked", "flash1", "flash2", "flash3", "te", "te_2024", "sdpa", "sdpa_2025"),
    "plan.fused_cross_entropy": (True, False),
    "plan.gradient_accumulation_fusion": (True, False),
    "plan.loss_chunks": (4,),
    "plan.vocabulary_parallel_loss": (True, False),
    "plan.overlap_gradients": (True, False, "bubbles"),
    "plan.overlap_parameters": (True, False),
    "plan.overlap_tensor_parallel": (True, False),
    "plan.bucket_size": (4194304.0, 67108864.0),
    "plan.reduce_gradients": ("step", "microbatch"),
    "plan.gradient_exchange": ("all_reduce", "one_bit", "local_sgd", "diloco", "streaming_diloco", "one_process", "power_sgd",
                               "parameter_server", "stale_parameter_server", "byteps", "wave_synchronous"),
    "plan.exchange_every": (1, 4, 500),
    "plan.exchange_warmup": (0.0, 0.5),
    "plan.exchange_bits": (4, 8, 16),
    "plan.exchange_parts": (2, 8),
    "plan.exchange_rank": (1, 4),
    "plan.exchange_servers": (0, 1, 4),
    "plan.exchange_priority": (True, False),
    "plan.exchange_staleness": (4,),
    "plan.moment_dtype": ("bf16", ["bf16", "fp8"]),
    "plan.splits_master_weights": (True, False),
    "plan.gradient_dtype": ("fp32", "bf16"),
    "plan.gradient_reduce_dtype": ("fp32", "bf16"),
    "plan.p2p": ("latency", "blocking"),
    "plan.registers": (1, 2),
    "plan.layer_split": ([3, 5], [5, 3], [2, 2, 3, 1]),
    "plan.replica_layer_splits": ([[3, 5]] * 4, [[3, 5], [5, 3], [4, 4], [3, 5]]),
    "plan.stages": (
        [{"ranks": 4}, {"ranks": 4}],
        [{"ranks": 2}, {"ranks": 6}],
        [{"ranks": 2, "layers": 3}, {"ranks": 4, "layers": 4}, {"ranks": 2, "layers": 1}],
        [{"ranks": 4, "tensor_parallel": 2}, {"ranks": 4, "recompute": "full"}],
    ),
    "plan.fsdp_unit": ("chunk", 2),
    "plan.fsdp_gather": ("microbatch", "visit"),
    "plan.fsdp_reduce": ("microbatch", "visit", "step"),
    "plan.fsdp_prefetch": (0, 2),
    "plan.reshard_after_forward": (True, False),
    "plan.quantized_weights": (True,),
    "plan.quantized_gradients": (True,),
    "plan.optimizer_offload": (0.5, 1.0, "host", "nvme"),
    "plan.optimizer_offload_overlap": (True,),
    "plan.activation_offload": (1, 2),
    "plan.parameter_offload": (0.5, "nvme"),
    "plan.clip_gradients": (True, False),
    "plan.optimizer_in_backward": (True,),
    "plan.post_validation": (True,),
    "plan.dropout": (True, False),
    "plan.narrow_gate_input": (True,),
    "plan.cuda_graphs": ("none", "full_iteration", ["attn"], ["attn", "moe_router"], ["mlp"]),
    "plan.rank_order": (["tp", "dp", "pp"], ["tp", "pp", "dp"], ["dp", "tp", "cp", "pp"]),
    "plan.framework": tuple(names("frameworks")),
    "workload.precision": ("fp32", "tf32", "fp16", "bf16", "bf16_true", "fp8", "fp8_current", "fp8_block", "mxfp8", "nvfp4", "int8"),
    "workload.optimizer": ("adam", "adam_8bit", "adafactor", "sgd", "lamb", "lars", "lion", "muon"),
    "workload.document_length": (100.0,),
    "workload.target_length": (64,),
    "family": tuple(FAMILIES),
    "cluster": CLUSTERS,
    "nodes": (1, 2),
}  # fmt: skip
NEEDS: dict[str, dict[str, Any]] = {
    "plan.context_parallel_kind": {"plan.context_parallel": 4},
    "plan.context_parallel_inner": {"plan.context_parallel": 4, "plan.context_parallel_kind": "hybrid"},
    "plan.expert_tensor_parallel": {"plan.tensor_parallel": 2, "plan.sequence_parallel": True, "family": "experts"},
    "plan.expert_exchange": {"plan.expert_parallel": 4, "family": "experts"},
    "plan.expert_group_size": {"plan.expert_exchange": "einsum", "family": "expert capacity"},
    "plan.expert_imbalance": {"plan.expert_parallel": 4, "family": "experts"},
    "plan.expert_loop": {"family": "experts"},
    "plan.expert_permute_fusion": {"family": "experts"},
    "plan.expert_parallel": {"family": "experts"},
    "plan.sequence_parallel": {"plan.tensor_parallel": 2},
    "plan.tensor_mesh": {"plan.layout": "tesseract", "plan.tensor_parallel": 64, "plan.microbatch_size": 16, "nodes": 8},
    "plan.tensor_parallel_splits": {"plan.tensor_parallel": 4, "plan.sequence_parallel": True},
    "plan.secondary_shard_size": {"plan.zero_stage": 3},
    "plan.shard_size": {"plan.zero_stage": 3},
    "plan.shard_across_experts": {"plan.zero_stage": 3, "plan.expert_parallel": 2, "family": "experts"},
    "plan.recompute_modules": {"plan.recompute": "selective"},
    "plan.recompute_layers": {"plan.recompute": "full", "plan.recompute_method": "block"},
    "plan.recompute_method": {"plan.recompute": "full", "plan.recompute_layers": 1},
    "plan.recompute_checkpoints": {"plan.recompute": "revolve"},
    "plan.partition_activations": {"plan.recompute": "full", "plan.tensor_parallel": 2},
    "plan.overlap_parameters": {"plan.zero_stage": 1},
    "plan.overlap_tensor_parallel": {"plan.tensor_parallel": 2},
    "plan.exchange_every": {"plan.gradient_exchange": "local_sgd"},
    "plan.exchange_warmup": {"plan.gradient_exchange": "one_bit"},
    "plan.exchange_rank": {"plan.gradient_exchange": "power_sgd"},
    "plan.exchange_parts": {"plan.gradient_exchange": "streaming_diloco"},
    "plan.exchange_bits": {"plan.gradient_exchange": "diloco"},
    "plan.exchange_servers": {"plan.gradient_exchange": "byteps", "nodes": 2},
    "plan.exchange_priority": {"plan.gradient_exchange": "parameter_server"},
    "plan.exchange_staleness": {"plan.gradient_exchange": "stale_parameter_server", "plan.exchange_servers": 1, "nodes": 2},
    "plan.vocabulary_parallel_loss": {"plan.tensor_parallel": 2},
    "plan.p2p": {"plan.pipeline_parallel": 2},
    "plan.registers": {"plan.pipeline_parallel": 2},
    "plan.layer_split": {"plan.pipeline_parallel": 2},
    "plan.replica_layer_splits": {"plan.gradient_exchange": "wave_synchronous", "plan.schedule": "hetpipe", "plan.pipeline_parallel": 2},
    "plan.stages": {"plan.microbatch_size": 12},
    "plan.fsdp_unit": {"plan.zero_stage": 3},
    "plan.fsdp_gather": {"plan.zero_stage": 3, "plan.pipeline_parallel": 2, "plan.fsdp_unit": "chunk"},
    "plan.fsdp_reduce": {"plan.zero_stage": 3, "plan.pipeline_parallel": 2, "plan.fsdp_gather": "visit", "plan.fsdp_unit": "chunk"},
    "plan.fsdp_prefetch": {"plan.zero_stage": 3},
    "plan.reshard_after_forward": {"plan.zero_stage": 3},
    "plan.quantized_weights": {"plan.zero_stage": 3},
    "plan.optimizer_in_backward": {"plan.clip_gradients": False},
    "plan.quantized_gradients": {"plan.zero_stage": 3, "plan.secondary_shard_size": 2, "nodes": 2},
    "plan.optimizer_offload_overlap": {"plan.optimizer_offload": 1.0},
    "plan.parameter_offload": {"plan.zero_stage": 3},
    "plan.chunks_per_rank": {"plan.pipeline_parallel": 2},
    "plan.schedule": {"plan.pipeline_parallel": 4},
    "plan.post_validation": {"plan.pipeline_parallel": 2, "plan.schedule": "zb_h1", "plan.zero_stage": 1},
    "workload.target_length": {"family": "encoder-decoder"},
}  # fmt: skip
CHUNKS = {"interleaved_1f1b": 2, "breadth_first": 2, "looped_bfs": 2, "zbv": 2, "v_half": 2, "v_min": 2, "dualpipev": 2, "seq1f1b": 2,
          "terapipe": 2, "slimpipe": 2, "hanayo": 2, "bitpipe": 2, "combined_1f1b": 2}  # fmt: skip
ACCEPTED, TRIES = 2400, 60
Choice = tuple[str, int]


def drawn(chance: random.Random, wanted: list[Choice]) -> dict[str, Any]:
    """Return a case that holds the wanted choices and few others."""
    case: dict[str, Any] = {"family": chance.choice(("gpt", "grouped queries")), "cluster": "dgx_h100", "nodes": 1}
    for name in chance.sample(list(FIELDS), chance.choice((0, 1, 1, 2, 3))):
        case |= NEEDS.get(name, {}) if chance.random() < 0.8 else {}
        case[name] = chance.choice(FIELDS[name])
    for name, _ in wanted:
        case |= NEEDS.get(name, {})
    case |= {name: FIELDS[name][place] for name, place in wanted}
    if "plan.schedule" in case and "plan.chunks_per_rank" not in case:
        case["plan.chunks_per_rank"] = CHUNKS.get(case["plan.schedule"], 1)
    return shaped(case)


def shaped(case: dict[str, Any]) -> dict[str, Any]:
    """Return the case as the tables of a job, with a batch of a few microbatches for each replica."""
    out: dict[str, Any] = {k: v for k, v in case.items() if "." not in k}
    for table in ("workload", "plan"):
        out[table] = {k.split(".")[1]: v for k, v in case.items() if k.startswith(f"{table}.")}
    plan = out["plan"]
    gpus = {"rtx_4090_x4": 4, "gb200_nvl72": 72, "alps": 4, "tpu_v4_pod": 4}.get(out["cluster"], 8) * out["nodes"]
    inner = plan.get("tensor_parallel", 1) * plan.get("context_parallel", 1) * plan.get("pipeline_parallel", 1)
    microbatches = 1 if "optimizer_in_backward" in plan else 2 * plan.get("pipeline_parallel", 1)
    batch = max(1, gpus // inner) * plan.get("microbatch_size", 1) * microbatches
    old = out["cluster"] in ("v100_dgx1", "p100_dgx1")
    out["workload"] = {
        "sequence_length": 256,
        "global_batch_size": batch,
        "precision": "fp16" if old else "bf16",
    } | out["workload"]
    return out


def main() -> None:
    """Write both files."""
    chance = random.Random(11)
    choices = [(name, place) for name, many in FIELDS.items() for place in range(len(many))]
    left = {(a, b) for a in choices for b in choices if a[0] < b[0]}
    tries: dict[tuple[Choice, Choice], int] = {}
    accepted: dict[str, None] = {}
    refused: dict[str, str] = {}
    open_pairs = sorted(left)
    singles = [[choice] for choice in choices for _ in range(2)]
    while len(accepted) < ACCEPTED and (open_pairs or singles):
        wanted = singles.pop() if singles else list(chance.choice(open_pairs))
        for _ in range(TRIES if len(wanted) == 1 else 4):
            case = drawn(chance, wanted)
            line = json.dumps(case, sort_keys=True)
            try:
                workload, plan, cluster = made_plan(case)
                resolve(workload, plan, cluster.world_size)
                simulate(workload, plan, cluster)
            except SimulatorError as refusal:
                if isinstance(refusal, PlanError) or "precision" in str(refusal):
                    refused.setdefault(re.sub(r"[\d.]+|'[^']*'", "#", str(refusal)), line)
                continue
            except ValueError:  # the model of the plan itself says no
                continue
            if line in accepted:
                continue
            accepted[line] = None
            met = [(name, place) for name, place in choices if _has(case, name, FIELDS[name][place])]
            left -= {(a, b) for a in met for b in met if a[0] < b[0]}
            break
        else:
            if len(wanted) == 2:
                pair = (wanted[0], wanted[1])
                tries[pair] = tries.get(pair, 0) + 1
                if tries[pair] > 2:
                    left.discard(pair)
        if len(accepted) % 20 == 0:
            open_pairs = sorted(left)
            print(f"\r{len(accepted)} plans, {len(left)} pairs left, {len(refused)} refusals", end="", flush=True)
    PLANS.write_text("\n".join(accepted) + "\n")
    REFUSALS.write_text("\n".join(sorted(refused.values())) + "\n")
    print()


def _has(case: dict[str, Any], name: str, value: Any) -> bool:
    table, _, field = name.partition(".")
    held = case[table].get(field) if field else case.get(table)
    return bool(held == value)


if __name__ == "__main__":
    main()
