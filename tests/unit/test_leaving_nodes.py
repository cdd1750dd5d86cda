"""What `dtsim explain` says of groups that leave their node: which they are, collectives inside layers among them."""

from __future__ import annotations

import pytest

from simulator import simulate_job
from simulator.job import job_from_names
from simulator.studies.explanation import leaving_nodes


@pytest.mark.parametrize(
    ("model", "settings", "inside"),
    [
        ("mixtral_8x7b", ["plan.expert_parallel=8"], set()),
        ("qwen3_30b_a3b", ["plan.expert_parallel=32"], {"all_gather over ep", "all_to_all over ep"}),
        ("llama3_8b", ["plan.tensor_parallel=16"], {"all_reduce over tp-heads"}),
        (
            "llama3_8b",
            ["plan.context_parallel=16", "workload.sequence_length=32768"],
            {"all_gather over cp", "reduce_scatter over cp"},
        ),
    ],
)
def test_collectives_of_layers_are_told_where_their_group_leaves_the_node(
    model: str, settings: list[str], inside: set[str]
) -> None:
    job = job_from_names(model, "dgx_h100", ["cluster.gpus=64", "plan.zero_stage=1", *settings])
    told = set(leaving_nodes(simulate_job(job)))
    assert inside == {name for name in told if " over " in name}
    assert {"all_reduce gradient norm", "reduce_scatter gradients"} <= told


def test_messages_between_pipeline_ranks_are_one_thing() -> None:
    job = job_from_names(
        "llama3_8b", "dgx_h100", ["cluster.gpus=64", "plan.tensor_parallel=8", "plan.pipeline_parallel=8"]
    )
    assert [name for name in leaving_nodes(simulate_job(job)) if name.startswith("messages")] == [
        "messages between pipeline ranks"
    ]
