"""The columns of every table that an answer gives as a frame: what each means and its unit, declared once.

A column means the same in every table that has it.  Columns with a dot (plan.tensor_parallel) are settings of a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.program.prices import ACCOUNTS
from simulator.program.program import CATEGORIES

__all__ = ["COLUMNS", "Column", "account_column", "category_column", "column_of"]


@dataclass(frozen=True, slots=True)
class Column:
    """What a column means.

    Args:
        doc: in words.
        unit: of its numbers; "" = a name, a count or a truth, "1" = a fraction.
        better: which of two values one would rather have.
    """

    doc: str
    unit: str = ""
    better: Literal["less", "more", ""] = ""


def account_column(account: str) -> str:
    """Return the column of an account of the step time.

    >>> account_column("tp")
    'tp_s'
    """
    return f"{account}_s"


def category_column(category: str) -> str:
    """Return the column of a category of memory.

    >>> category_column("weights")
    'weights_bytes'
    """
    return f"{category}_bytes"


COLUMNS: dict[str, Column] = {
    # which row
    "name": Column("the settings in which the row differs from others, or what was asked about"),
    "job": Column("name of the job"),
    "point": Column("number of a study's point, from 0: the last setting's values first"),
    "status": Column("ok, refused by a rule, or failed: a fault, or a worker lost every time"),
    "chosen": Column("whether a search chose this plan"),
    "tie": Column("whether it lies within the band of the best, so that nobody could tell them apart"),
    "reason": Column("why there is no prediction; empty else"),
    "field": Column("a choice of a plan, as --set takes it"),
    "value": Column("one value of that choice"),
    "pipeline_rank": Column("stage of the pipeline, from 0"),
    "replicas": Column("ranks of the real world that a row stands for"),
    "schedule": Column("name of the pipeline schedule"),
    "gpus": Column("GPUs of the job", "GPUs"),
    "global_batch_size": Column("sequences of one step", "sequences"),
    # time and rates
    "step_time_s": Column("one step", "s", "less"),
    "low_s": Column("lower end of the 80 % band of the time", "s", "less"),
    "high_s": Column("upper end of the 80 % band of the time", "s", "less"),
    "tokens_per_second": Column("tokens of all GPUs together", "tokens/s", "more"),
    "tokens_per_second_per_gpu": Column("tokens of one GPU", "tokens/s", "more"),
    "model_flops_per_second_per_gpu": Column("model FLOP (full attention, no recompute)", "FLOP/s", "more"),
    "mfu": Column("model FLOP/s over the dense peak of the products' number format", "1", "more"),
    "hfu": Column("the same with recomputed FLOP", "1", "more"),
    "efficiency": Column("tokens per second and GPU over those of the fewest GPUs", "1", "more"),
    "bubble_fraction": Column("part of the step in which a rank waits for the pipeline, messages included", "1", "less"),
    "bubble_overhead": Column("the same idle time over the rest of the step", "1", "less"),
    "exposed_communication_s": Column("communication that nothing hides, mean over ranks", "s", "less"),
    "over_best": Column("what is made least, over that of the best plan, less 1", "1", "less"),
    "is_bound": Column("whether over_best is only a lower bound: plans of it that may be better than those simulated were only bounded"),
    "most_over_best": Column("over_best of the best plan of it that was simulated", "1", "less"),
    # memory
    "peak_memory_bytes": Column("reserved memory at the peak, of the fullest rank or of the row's", "B", "less"),
    "memory_low_bytes": Column("lower end of the 80 % band of that peak", "B", "less"),
    "memory_high_bytes": Column("upper end of the 80 % band of that peak", "B", "less"),
    "memory_capacity_bytes": Column("memory of its GPU", "B", "more"),
    "host_memory_bytes": Column("what the GPUs of the fullest node keep in its host's memory", "B", "less"),
    "nvme_bytes": Column("what the GPUs of the fullest node keep on its drives", "B", "less"),
    "fits": Column("whether every rank fits its GPU, by the point estimate"),
    "fit_probability": Column("with which the fullest rank fits, by the band of memory", "1", "more"),
    # money and energy
    "price_usd_per_step": Column("GPU-hours of a step at the cluster's price", "$", "less"),
    "price_usd_per_million_tokens": Column("the same for a million tokens", "$", "less"),
    "energy_j_per_token": Column("electricity of the facility for a token", "J", "less"),
    "energy_j_per_step": Column("electricity of the facility for a step", "J", "less"),
    # pipelines
    "activations_bytes_fullest": Column("activations on the rank that holds most of them", "B", "less"),
    "weight_copies": Column("copies of its share of the weights on the fullest rank", "", "less"),
    "messages": Column("between pipeline ranks in a step of one replica", "", "less"),
    "message_bytes": Column("of these messages together, one tensor-parallel rank's share", "B", "less"),
    # schedules alone, in the unit of the times that were given
    "ranks": Column("of the pipeline, or that take part in a collective"),
    "microbatches": Column("of one step"),
    "chunks_per_rank": Column("parts of the model that a rank holds"),
    "lower_bound": Column("no order with these times and this memory ends sooner", "unit of time"),
    "makespan": Column("end of the last action, in the unit of the times given", "unit of time", "less"),
    "peak_activations": Column(
        "activations at their peak, in microbatches on one rank's share", "microbatches", "less"
    ),
    "peak_activations_if_freed_at_input_grad": Column(
        "the same, if input gradients gave them back", "microbatches", "less"
    ),
    "longest_rank_span": Column("longest time from a rank's first start to its last end", "unit of time", "less"),
    "busy": Column("time in which the rank computes", "unit of time"),
    "idle": Column("the rest of the makespan", "unit of time", "less"),
    "span": Column("from the rank's first start to its last end", "unit of time", "less"),
    "latency": Column("of a hop between ranks", "unit of time"),
    "rank": Column("pipeline rank, from 0; of validations: entry of a list of values"),
    "chunk": Column("part of the model, from the input"),
    "microbatch": Column("from 0"),
    "lane": Column("direction of the pipeline in which a model runs"),
    "action": Column("forward, backward, input_grad, weight_grad, ..."),
    "start": Column("when it starts", "unit of time"),
    "end": Column("when it ends", "unit of time"),
    # validations
    "case_id": Column("the row of the table"),
    "quantity": Column("what was measured; its name says the unit"),
    "group": Column("the source, or the log"),
    "kind": Column("of the run"),
    "unknown": Column("what of code, plan and machine had to be assumed"),
    "code": Column("framework profile that it was predicted with"),
    "gpu": Column("that it was predicted for"),
    "priced": Column("log spread that the prices explain", "1"),
    "measured": Column("in the unit of the quantity"),
    "predicted": Column("in the unit of the quantity"),
    "low": Column("lower end of the 80 % band, in the unit of the quantity"),
    "high": Column("upper end of the 80 % band, in the unit of the quantity"),
    "measured_s": Column("seconds per step of one GPU, of a trace; empty where it has no times", "s"),
    "predicted_s": Column("the same, of a prediction", "s"),
    "measured_bytes": Column("bytes per step that one GPU brings into collectives and messages, of a trace", "B"),
    "predicted_bytes": Column("the same, of a prediction", "B"),
    "kernels": Column("per step"),
    "longest_kernel": Column("the kernel that takes most of it"),
    "error_pct": Column("predicted over measured, less 1", "%"),
    "counts": Column("whether the row belongs to the scores"),
    "in_band": Column("whether the measurement lies in the band"),
    "assumed": Column("what was filled in to place the row"),
    "rows": Column("that count"),
    "rows_predicted": Column("of these, predicted"),
    "median_error": Column("median of absolute errors, unpredicted rows as 1", "1", "less"),
    "mean_error": Column("their mean", "1", "less"),
    "bias": Column("median of signed errors", "1"),
    "p90_error": Column("nine of ten absolute errors are smaller", "1", "less"),
    "max_error": Column("the largest", "1", "less"),
    "rank_correlation": Column("Spearman's, mean over sweeps", "1", "more"),
    "band_coverage": Column("part of the measurements in their band", "1"),
    # searches
    "plans": Column("of the space that have this value"),
    "refused": Column("of these, cannot be"),
    "too_large": Column("of these, do not fit"),
    # collectives
    "message_size_bytes": Column("largest buffer of one rank", "B"),
    "cluster": Column("name of the cluster"),
    "nodes": Column("on which the ranks lie"),
    "collective": Column("all_reduce, all_gather, ..."),
    "time_s": Column("of the collective", "s", "less"),
    "algorithm": Column("that the library chooses"),
    "protocol": Column("that the library chooses"),
    "algorithm_bandwidth": Column("message over time", "B/s", "more"),
    "bus_bandwidth": Column("as nccl-tests defines it", "B/s", "more"),
    "calibrated": Column("whether logs of this platform were fitted"),
    # runs of weeks
    "wall_s": Column("whole time of one run", "s", "less"),
    "goodput": Column("time of useful steps over all time", "1", "more"),
    "interruptions": Column("stops; by component: their mean number", "", "less"),
    "lost_s": Column("time in which no useful step runs", "s", "less"),
    "component": Column("what failed"),
    "account": Column("where the time was lost"),
    **{account_column(name): Column(f"time that goes to {name}", "s", "less") for name in ACCOUNTS},
    **{category_column(name): Column(f"{name.replace('_', ' ')} at the peak", "B", "less") for name in CATEGORIES},
}  # fmt: skip
"""Name -> meaning, in the order of the page that lists them."""

_SETTING = Column("a setting of the job (docs/options.md)")


def column_of(name: str) -> Column:
    """Return what a column means; one with a dot is a setting.

    Raises:
        KeyError: nobody declared it.

    >>> column_of("plan.zero_stage").unit, column_of("step_time_s").unit
    ('', 's')
    """
    return _SETTING if "." in name else COLUMNS[name]
