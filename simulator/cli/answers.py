"""The JSON answers of `dtsim ... --json`: every key of each, with its type and meaning.

docs/json.md and `dtsim show schema NAME` read it.
"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.cli.answer_schema import EVERYWHERE, AnswerSchema, Key
from simulator.report.schema import SCHEMA_VERSION

__all__ = ["ANSWERS", "EVERYWHERE", "SCHEMA_VERSION", "AnswerSchema", "Key", "json_schema", "misfits"]


def _more(type_: str, doc: str) -> Key:
    return Key(type_, doc, always=False)


_TIME = Key("table", "`value`, and `low` and `high` of the 80 % band [s]")
_BREAKDOWN = Key("table", "seconds by account, mean over ranks; they sum to the step")
_JOB = Key("text", "its name")
_FOUND = "that plan with all that it was found for, as the text of a job file; null without one, or where a file cannot hold the job"
_LARGEST = Key("table", "what stands at the peak of the fullest rank: named tensors with their bytes")
_BUBBLE = Key("number", "part of the time in which ranks wait for the pipeline")
_OVERHEAD = Key("number", "the same idle time over the rest")
_FITS = Key("truth", "whether every rank fits, by the point estimate")
_SHAPE = {"ranks": Key("whole", "of the pipeline"), "microbatches": Key("whole", "of one step")}
_PEAKS = Key("list", "microbatches on a rank's share, by rank")
_ROWS = Key("list", "one entry per row asked for")
_NOTICED = Key("list", "what looked odd, in words")

ANSWERS = {
    "run": AnswerSchema(
        "dtsim run",
        {
            "job": _JOB,
            "step_time_s": _TIME,
            "tokens_per_second_per_gpu": Key("number", "tokens of one GPU"),
            "model_tflops_per_gpu": Key("number", "model TFLOP/s of one GPU"),
            "mfu": Key("number", "model FLOP/s over the peak"),
            "hfu": Key("number", "the same with recomputed FLOP"),
            "flop_convention": Key("text", "what counts as model FLOP"),
            "bubble_fraction": _BUBBLE,
            "bubble_overhead": _OVERHEAD,
            "exposed_communication_s": Key("table", "seconds by kind that nothing hides"),
            "breakdown_s": _BREAKDOWN,
            "peak_memory_bytes": Key("list", "per rank: total, allocated, and bytes by category"),
            "peak_memory_band_bytes": Key("list", "per rank: `low` and `high` of the 80 % band"),
            "memory_capacity_bytes": Key("number", "of the GPU of the fullest rank"),
            "device_memory_bytes": Key(
                "number", "what nvidia-smi shows of that rank: free places of no use come to its peak"
            ),
            "host_memory_bytes": Key("number", "what the GPUs of the fullest node keep in its host's memory"),
            "nvme_bytes": Key("number", "what the GPUs of the fullest node keep on its drives"),
            "largest_at_peak": _LARGEST,
            "fits": _FITS,
            "band": Key("table", "log spread of each term of the band, and of whole runs of this kind"),
            "world_size": Key("whole", "GPUs"),
            "power": Key("table", "watts of a GPU and of all machines, energy and CO2 per token"),
            "measured": _more(
                "table", "with --measured: the gap, whether it is in the band, terms that could explain it"
            ),
            "program": _more("text", "the program that was run in place of a job"),
            "training": _more("table", "with --tokens: days, GPU-hours, price"),
            "jitter": _more("table", "with noise: quantiles of the step time and what each cause adds"),
            "advice": _more("table", "where it does not fit: single changes that make it fit"),
            "plan_instead": _more(
                "table",
                "where the job is a file of another program and fits: `found`, a quicker plan that fits, of `plans`",
            ),
            "neighbours": _more("list", "other jobs on the cluster and what they leave"),
        },
    ),
    "explain": AnswerSchema(
        "dtsim explain",
        {
            "job": _JOB,
            "step_time_s": _TIME,
            "from_peak_to_step_s": Key("list", "from the time at the GPU's peak to the step, by what is added"),
            "breakdown_s": _BREAKDOWN,
            "critical_path_s": Key("table", "seconds of the longest chain by what prices them"),
            "host_bound": Key("list", "what the host launches too slowly"),
            "placement": Key("table", "where groups lie that leave their node"),
            "bubble_fraction": _BUBBLE,
            "largest_at_peak": _LARGEST,
            "fits": _FITS,
            "best": Key("table?", "the single change that helps most"),
            "changes": Key("list", "every neighbouring plan with its outcome"),
            "stragglers": _more("table", "where parts of the cluster differ: who sets the pace"),
            "another_plan": Key("table?", "a quicker plan that fits, found by a search of a second"),
            "tier_traffic": Key(
                "list", "per kind of copy below the GPU's memory: bytes, seconds, FLOP per byte, efficiency"
            ),
            "recompute_turns": Key(
                "table?", "of the longest chunk: `turns` of its backward, inputs that stand at once"
            ),
        },
    ),
    "compare": AnswerSchema(
        "dtsim compare",
        {
            "job": _JOB,
            "rows": Key(
                "list",
                "per variant `name`, `settings`, `reason`; keys of `run` but `device_memory_bytes` and `largest_at_peak`; price, pipeline",
            ),
        },
    ),
    "scaling": AnswerSchema(
        "dtsim compare --gpus",
        {
            "job": _JOB,
            "scaling": Key("text", "strong or weak"),
            "curves": Key("list", "per variant its points over GPUs"),
        },
    ),
    "latency_sweep": AnswerSchema(
        "dtsim compare --latency-sweep, dtsim schedule --latency-sweep",
        {
            **_SHAPE,
            "times": Key("table", "of a forward and both halves of a backward"),
            "latencies": Key("list", "of a hop"),
            "schedules": Key("table", "by name: chunks, makespans and bubbles over latencies"),
            "turns": Key("list", "where two schedules change places"),
            "refused": Key("table", "name and reason of those that cannot be"),
            "hop_latency": Key("number?", "of the job asked about, in the unit of the times"),
        },
    ),
    "schedule": AnswerSchema(
        "dtsim schedule NAME",
        {
            "schedule": Key("text", "its name"),
            "makespan": Key("number", "end of the last action, in the unit of the times"),
            "bubble_fraction": _BUBBLE,
            "bubble_overhead": _OVERHEAD,
            "peak_activations": _PEAKS,
            "weight_copies": Key("list", "by rank"),
            "orders": Key("list", "per rank its actions"),
            "peak_activations_if_freed_at_input_grad": _more("list", "the same, given back after input gradients"),
            "longest_rank_span": _more("number", "from a rank's first start to its last end"),
            "longest_idle_in_span": _more("number", "idle time inside such a span"),
            "messages": _more("number", "between ranks, in microbatches' activations"),
            "critical_path": _more("table", "actions of each kind on the longest chain"),
            "policy": _more("text", "of auto: what found the order"),
            "memory_limit": _more("number", "of auto"),
            "lower_bound": _more("number", "of auto: no order ends sooner"),
        },
    ),
    "schedules": AnswerSchema(
        "dtsim schedule NAME,NAME,...",
        {
            **_SHAPE,
            "schedules": Key("list", "answers of `schedule`"),
            "refused": Key("list", "`schedule` and `reason` of those that cannot be"),
        },
    ),
    "search": AnswerSchema(
        "dtsim search",
        {
            "job": _JOB,
            "objective": Key("text", "what was made least"),
            "fit_probability": Key("number", "with which plans must fit"),
            "strategy": Key("text", "its name"),
            "space": Key(
                "table",
                "`plans`; `ranges`: values by field; `left_out`: what the framework does not run; `untried`: what makes it too large",
            ),
            "disposed": Key("table", "plans by what became of them"),
            "proven": Key("truth", "whether no plan of the space is better"),
            "gap": Key("number?", "how much better another plan may be at most"),
            "seconds": Key("number", "that it took"),
            "best": Key("list", "the best plans"),
            "ties": Key("list", "the `number` of each plan that nobody can tell from the best"),
            "chosen": Key("table?", "the one of them to take"),
            "job_file": Key("text?", _FOUND),
            "pareto": Key("list", "plans simulated that fit; none beats another in time, memory, GPUs and price"),
            "choices": Key("list", "what every value of every field costs"),
            "sensitivity": _more(
                "table",
                "with --sensitivity: `chosen`, and per world its best plan and what keeping the chosen one costs",
            ),
        },
    ),
    "fit": AnswerSchema(
        "dtsim fit",
        {
            "question": Key("text", "fewest gpus, or largest batch, sequence, layers or model"),
            "unit": Key("text", "what `answer` counts"),
            "answer": Key("whole?", "how many; null where nothing fits"),
            "parameters": Key("whole?", "of the model that fits"),
            "plan": Key("table?", "the quickest plan that fits, as in `search`"),
            "job_file": Key("text?", _FOUND),
            "evaluations": Key("whole", "calls of simulate()"),
            "looked": Key("whole", "plans whose bounds were found"),
            "reason": Key("text?", "why nothing fits"),
        },
    ),
    "advise": AnswerSchema(
        "dtsim advise",
        {
            "job": _JOB,
            "machine": Key("text", "its kind: one GPU, one node, one rack, several nodes"),
            "gpus": Key("whole", "of the cluster"),
            "node_bandwidth": Key("number", "of a node into the network, one way [B/s]"),
            "global_batch_size": Key("whole", "sequences of a step"),
            "fits_one_gpu": Key("truth", "whether the model trains on one GPU"),
            "largest_layer_bytes": Key("number", "states of the largest layer"),
            "advice": Key("list", "families that a prediction cannot tell from the quickest, quickest first"),
            "families": Key("list", "per family: its best plan, whether that is proven, and what decided"),
            "crossings": Key("list", "pairs of families, and the network at which they change places"),
        },
    ),
    "plan": AnswerSchema(
        "dtsim plan",
        {
            "graph": Key("text", "its name, or a model's"),
            "problem": Key("text", "what was planned: placement, pipeline, synchronous, layout"),
            "objective": Key("text", "what the cost is"),
            "unit": Key("text", "of costs and bounds"),
            "lower_bound": Key("number", "no plan costs less; 0 = not known"),
            "best": Key("text", "planner of the cheapest plan"),
            "planners": Key(
                "list", "per planner: cost, gap, evaluations, seconds, `best_of` what it proves, history, plan"
            ),
            "failed": Key("list", "planners that found nothing, and why"),
        },
    ),
    "sweep": AnswerSchema(
        "dtsim sweep",
        {
            "study": Key("text", "its name"),
            "vary": Key("table", "setting -> its values"),
            "points": Key("whole", "of the study"),
            "done": Key("whole", "of which there is a result"),
            "ok": Key("whole", "points with a prediction"),
            "refused": Key("whole", "points that cannot be"),
            "failed": Key("whole", "points that met a fault or lost what computed them every time"),
            "resumed": Key("whole", "results that were there before"),
            "seconds": Key("number", "that the others took"),
            "journal": Key("text", "file of the results, point by point"),
            "best": Key("table?", "the quickest point that fits, as a row of the table"),
        },
    ),
    "capture": AnswerSchema(
        "dtsim capture",
        {
            "script": Key("text", "what was executed"),
            "world_size": Key("whole", "ranks that it was told of"),
            "rank": Key("whole", "that was recorded; of a pipeline the first one, of which the following keys are"),
            "ranks": Key("list", "of every rank that was recorded: rank and the keys that are of one"),
            "versions": Key("table", "of the packages that it used"),
            "axes": Key("list", "name and size of each mesh axis"),
            "tokens": Key("whole", "of a step, all ranks"),
            "parameters": Key("whole", "on this rank"),
            "operators": Key("whole", "recorded"),
            "rows": Key("whole", "of the program"),
            "items": Key("whole", "of the program"),
            "flops": Key("table", "by phase"),
            "collectives": Key("list", "phase, kind, group, ranks, bytes, type, and how often"),
            "saved_bytes": Key("table", "activations that stand when the first backward begins, by block"),
            "peak_bytes": Key("table", "by category"),
            "host_waits": Key("whole", "times that the host reads what the GPU has computed"),
            "unknown_kernels": Key("table", "kernels of no known cost, and how often"),
            "assumed": Key("list", "what was taken for granted, in words"),
        },
    ),
    "goodput": AnswerSchema(
        "dtsim goodput",
        {
            "job": _JOB,
            "samples": Key("whole", "runs simulated"),
            "samples_asked": Key("whole", "runs asked for"),
            "stopped": Key("truth", "whether Ctrl-C ended it"),
            "seed": Key("whole", "of the failures"),
            "days": Key("table", "mean, p10, p50, p90"),
            "goodput": Key("table", "time of useful steps over all time: mean, p10, p50, p90"),
            "interruptions": Key("table", "mean number by component"),
            "lost_s": Key("table", "mean seconds by account"),
            "waits_for_machines": Key("number", "interruptions that waited for a machine"),
            "tokens": Key("table", "mean, p10, p50, p90"),
            "steps": Key("number", "mean"),
            "fits": _FITS,
            "step_time_s": _TIME,
            "gpu_hours": Key("number", "mean"),
            "spare_gpu_hours": Key("number", "of machines that stand by"),
            "price": Key("number?", "dollars"),
            "price_per_gpu_hour": Key("number?", "dollars"),
            "energy_j": Key("number", "of the facility"),
            "co2_kg": Key("number", "of that energy"),
            "power": Key("table", "as in `run`"),
            "checkpoint": Key("table?", "bytes, stall, interval"),
            "sites": Key("table?", "the exchange between sites"),
            "levers": Key("list", "what single changes would buy"),
            "neighbours": _more("list", "other jobs on the cluster and what they leave"),
        },
    ),
    "collective": AnswerSchema(
        "dtsim collective KIND --size",
        {
            "message_bytes": Key("number", "largest buffer of one rank"),
            "ranks": Key("whole", "that take part"),
            "time_s": _TIME,
            "algorithm_bandwidth": Key("number", "message over time [B/s]"),
            "bus_bandwidth": Key("number", "as nccl-tests defines it [B/s]"),
            "algorithm": Key("text", "that the library chooses"),
            "protocol": Key("text", "that the library chooses"),
        },
    ),
    "collectives": AnswerSchema("dtsim collective KIND --sizes", {"rows": _ROWS}),
    "layout": AnswerSchema(
        "dtsim layout",
        {
            "model": Key("text", "its name"),
            "layout": Key("text", "name of the strategy, of the file, or `map`"),
            "mesh": Key("table", "ranks by axis"),
            "batch": Key("whole", "sequences"),
            "sequence": Key("whole", "tokens of each"),
            "notes": Key("list", "what was assumed, in words"),
            "ops": Key(
                "list",
                "per operation `label`, `block` and `count` (its kind of layer, and how often the model has it), `einsum`, `along` (axis: "
                "the dimension it divides), `operands` (`name`, `role`, `local_shape`, `layout`, `sbp` as held; `used_shape`, "
                "`used_layout`, `used_sbp` as computed on), `flops`, `backward_flops` and `collectives` (`kind`, `axes`, `bytes`, "
                "`direction`, `tensor`, `sent_bytes`, `ranks`); with a cluster also seconds",
            ),
            "totals": Key("table", "sums over a forward and a backward of the whole model, on one rank"),
            "propagated": _more("table", "with --propagate: `given`, `found`, `open`, `conflicts`"),
            "chosen": _more(
                "table",
                "with --choose: `given`, `found`, `boxing_bytes` (that the forward moves over all ranks), and of what --propagate makes of "
                "the same maps `propagated` (`boxing_bytes`, `totals`)",
            ),
        },
    ),
    "layouts": AnswerSchema(
        "dtsim layout --compare",
        {"model": Key("text", "its name"), "layouts": Key("list", "answers of `layout`, one after the other")},
    ),
    "calibrate": AnswerSchema(
        "dtsim calibrate nccl",
        {
            "profiles": Key("list", "what was fitted, with its residuals and file"),
            "noticed": _NOTICED,
            "left_out": Key("list", "logs that were not used, with the reason"),
        },
    ),
    "accuracy": AnswerSchema(
        "dtsim calibrate nccl --accuracy",
        {
            "rows": _ROWS,
            "summary": Key("table", "errors over all"),
            "bands": Key("list", "whether bands hold what they promise"),
        },
    ),
    "calibrate_kernels": AnswerSchema(
        "dtsim calibrate gemm|attention|memory",
        {
            "name": Key("text", "of the profile"),
            "residuals": Key("table", "of the fit"),
            "sigma": Key("number", "log spread of what a log left out"),
            "numbers": Key("table", "that were fitted"),
            "noticed": _NOTICED,
        },
    ),
    "validate": AnswerSchema(
        "dtsim validate",
        {
            "complete": Key("truth", "False when it was interrupted"),
            "not_read": Key("list", "`column`s that say something and that nothing is read from, and which is `meant`"),
            "rows": Key("list", "per measured value: measured, predicted, band, error in per cent, reason"),
            "summary": Key("table", "scores of all rows"),
            "by_group": Key("table", "scores by source or log"),
            "bands": Key("list", "whether bands hold what they promise"),
            "by_quantity": Key("table", "scores by quantity"),
        },
    ),
    "import": AnswerSchema(
        "dtsim import",
        {
            "source_format": Key("text", "what the files are"),
            "job": Key(
                "table", "`workload`, `plan`, `cluster` in our field names; what a file does not decide is absent"
            ),
            "read": Key("list", "field, value and place of what was read"),
            "assumed": Key("list", "`field`, `value`, `why`"),
            "no_effect": Key("list", "settings that change nothing here"),
            "not_understood": Key("list", "`place`, `text`"),
            "measured": _more("table", "of a log or trace: steady steps and their spread"),
            "operations": _more(
                "table",
                "of a trace or workload file: `rows` by kind and group: count, bytes, flops, seconds of `gpus` GPUs",
            ),
            "files": _more("list", "of a topology: data files that -o writes"),
        },
    ),
    "list": AnswerSchema("dtsim list", {"names": Key("list", "of that kind")}),
    "show": AnswerSchema(
        "dtsim show",
        {
            "name": Key("text", "of what is shown"),
            "place": Key("text", "its file"),
            "facts": Key("table", "its values"),
            "sources": Key("table", "where each was read"),
            "derived": Key("table", "what follows from them"),
            "inherited": Key("table", "which it takes over, and from whom"),
        },
    ),
    "program": AnswerSchema(
        "dtsim show program JOB",
        {"name": _JOB, "lines": Key("whole", "of the whole text"), "text": Key("list", "its lines (docs/program.md)")},
    ),
    "measure": AnswerSchema(
        "dtsim measure",
        {
            "device": Key("text", "what was measured"),
            "files": Key("list", "that were written"),
            "next": Key("text", "command that reads them"),
        },
    ),
}
"""Name of an answer -> its keys."""


def json_schema(name: str) -> dict[str, object]:
    """Return an answer's keys as JSON Schema (draft 2020-12).

    >>> json_schema("list")["required"]
    ['schema_version', 'kind', 'provenance', 'names']
    """
    answer = ANSWERS[name]
    keys = {**EVERYWHERE, **answer.keys}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{answer.command}, version {SCHEMA_VERSION}",
        "type": "object",
        "required": [key for key, told in keys.items() if told.always],
        "properties": {key: told.schema() for key, told in keys.items()},
    }


def misfits(name: str, answer: Mapping[str, object]) -> list[str]:
    """Return where an answer is not as declared: keys that lack, that nobody declared, or of another type."""
    keys = {**EVERYWHERE, **ANSWERS[name].keys}
    out = [f"{key}: lacks" for key, told in keys.items() if told.always and key not in answer]
    out += [f"{key}: not declared" for key in answer if key not in keys]
    return out + [
        f"{key}: no {keys[key].type}" for key, value in answer.items() if key in keys and not keys[key].holds(value)
    ]
