"""What a row puts on the host, starts by graphs, or packs: by its columns, else by its own words."""

from __future__ import annotations

import pytest

from simulator.accuracy.attempt import predict
from simulator.importers.table.row_host import row_documents, row_graphs, row_host
from simulator.importers.table.row_simulation import row_simulation
from simulator.importers.table.rows import CannotPlace
from tests.rows import placed

RUN = {
    "model": "llama3-8b",
    "arch_layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "8",
    "ffn_hidden": "14336",
    "gated_mlp": "1",
    "vocab": "128256",
    "seq_len": "8192",
    "gpu": "H200-141GB-SXM",
    "n_gpus": "8",
    "zero_stage": "3",
    "mbs": "1",
    "gbs": "8",
    "recompute": "full",
    "framework": "Hugging Face transformers + DeepSpeed ZeRO-3",
}


@pytest.mark.parametrize(
    ("framework", "fields"),
    [
        ("DeepSpeed ZeRO-3 offload", {"optimizer_offload": 1.0}),
        ("FSDP, CPU offload of the optimizer", {"optimizer_offload": 1.0}),
        ("fairscale FSDP, --cpu-offload", {"optimizer_offload": 1.0, "parameter_offload": 1.0}),
        ("DeepSpeed ZeRO-3, CPU offload", {"optimizer_offload": 1.0}),
        ("torchtune, weights, gradients and moments on the host", {"parameter_offload": 1.0}),
        ("FSDP --offload_activations=1", {"activation_offload": 32}),
        ("remat_policy=custom, decoder_layer_input=offload, query offloaded, too", {"activation_offload": 32}),
        ("remat_policy=custom, decoder_layer_input and out_proj offload", {"activation_offload": 32}),
        ("remat_policy=custom, decoder_layer_input, query and key on the device", {}),
        ("activation checkpoints offloaded to the host", {"activation_offload": 32}),
        ("every layer whole; inputs of layers go to the host", {"activation_offload": 32}),
        ("every layer whole; whether inputs of layers go to the host is not said", {}),
        ("FSDP without CPU offload", {}),
        ("FSDP", {}),
    ],
)
def test_words_tell_what_is_on_the_host(framework: str, fields: dict[str, float]) -> None:
    found, assumed = row_host({"framework": framework}, 32, 3)
    assert found == fields
    assert bool(assumed) == bool(fields)


def test_a_column_counts_more_than_words() -> None:
    row = {"framework": "DeepSpeed ZeRO-3 offload", "optimizer_offload": "0.5"}
    assert row_host(row, 32, 3) == ({"optimizer_offload": 0.5}, ())
    assert row_host({**row, "optimizer_offload": "0"}, 32, 3) == ({}, ())


@pytest.mark.parametrize("column", ["optimizer_offload", "parameter_offload"])
def test_a_part_beyond_the_whole_is_refused(column: str) -> None:
    with pytest.raises(CannotPlace):
        row_host({column: "2"}, 32, 3)


def test_graphs_and_documents_have_columns() -> None:
    assert row_graphs({"cuda_graphs": "full_iteration"}) == {"cuda_graphs": "full_iteration"}
    assert row_graphs({"cuda_graphs": "attn"}) == {"cuda_graphs": ("attn",)}
    assert (row_documents({"document_length": "512"}), row_documents({})) == (512.0, None)
    with pytest.raises(CannotPlace):
        row_documents({"document_length": "0"})


def test_a_row_with_them_becomes_such_a_simulation() -> None:
    columns = {"optimizer_offload": "1", "cuda_graphs": "none", "document_length": "1024"}
    placed = row_simulation({**RUN, **columns})
    assert placed.fields["optimizer_offload"] == 1.0
    assert placed.fields["cuda_graphs"] == "none"
    assert placed.workload.document_length == 1024
    assert "optimizer_offload" not in row_simulation(RUN).fields


def test_async_tp_cuts_products_in_a_piece_for_each_rank() -> None:
    said = placed(overlap="async TP", tp="2", seq_parallel="1", dp="").fields
    assert (said["overlap_tensor_parallel"], said["tensor_parallel_splits"]) == (True, 2)
    for words in ("no async TP", "without async TP", "vanilla TP"):
        assert "tensor_parallel_splits" not in placed(quality_note=words, tp="2", seq_parallel="1", dp="").fields
    assert "tensor_parallel_splits" not in placed(overlap="async TP").fields, "nothing to overlap"


def test_what_columns_of_the_host_cannot_hold_is_named_with_its_field() -> None:
    for told, said in (
        ({"activation_offload": "2.5"}, "activation_offload is a number of layers, but it is 2.5"),
        ({"parameter_offload": "3"}, "parameter_offload = 3 is outside 0 to 1"),
        ({"cuda_graphs": "yes"}, "cuda_graphs = .*: expected none or full_iteration"),
    ):
        with pytest.raises(CannotPlace, match=said):
            predict(placed(**told))


def test_a_column_of_graphs_goes_before_a_published_recipe_and_words_are_told() -> None:
    run = {
        "source": "MLPerf Training v4.0",
        "model": "gpt3-175b",
        "gpu": "H100-80GB-SXM",
        "gpu_peak_bf16_tflops": "989",
    }

    def graphs(**more: str) -> tuple[object, list[str]]:
        one = placed(**run, **more)
        return one.fields.get("cuda_graphs"), [said for said in one.assumed if said.startswith(("cuda_graphs", "loss"))]

    recipe, words = graphs()
    assert recipe == ("attn", "mlp")
    assert len(words) == 1
    assert graphs(cuda_graphs="none") == ("none", [])
    assert graphs(quality_note="no CUDA graphs") == (recipe, words)
    told = ["loss_chunks = 4 (the row's own words)", "cuda_graphs = full_iteration (the row's own words)"]
    assert graphs(quality_note="full-iteration CUDA graphs; loss in 4 chunks, chunked loss") == (
        "full_iteration",
        [*words, *told],
    )


@pytest.mark.parametrize(
    ("note", "schedule", "graphs"),
    [
        ("", "combined_1f1b", None),
        ("CUDA graphs", "combined_1f1b", ("attn", "moe_router", "moe_preprocess")),
        ("no overlap of experts; CUDA graphs off", None, "none"),
        ("without exchange overlap; CUDA graphs are disabled", None, "none"),
    ],
)
def test_what_a_row_says_is_off_is_off_whatever_the_recipe_has(
    note: str, schedule: str | None, graphs: str | tuple[str, ...] | None
) -> None:
    row = {"model": "qwen3-30b-a3b", "framework": "NeMo/Megatron-Bridge (Megatron-Core)", "version": "release 25.11"}
    row |= {"moe_experts": "128", "moe_topk": "8", "moe_ffn_hidden": "768", "ep": "8", "tp": "1", "pp": "1", "dp": "16"}
    row |= {"schedule": "", "gpu": "H100-80GB-SXM", "gpu_mem_gb": "80", "gpu_peak_bf16_tflops": "989", "intra_link": ""}
    fields = placed(**row, quality_note=note).fields
    assert (schedule, graphs) == (fields.get("schedule"), fields.get("cuda_graphs"))
