"""Megatron-LM's scripts become jobs: word by word, never run, and nothing is dropped in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.errors import SpecError
from simulator.importers.document import Document
from simulator.importers.jobs import import_files, load_any_job
from simulator.importers.shell import read_script
from simulator.importers.vocabulary.words import stages_of
from simulator.workload.model import load_model

SCRIPT = Path(__file__).parents[1] / "data" / "imports" / "megatron.sh"


def imported(tmp_path: Path, text: str, name: str = "train.sh") -> dict[str, Any]:
    path = tmp_path / name
    path.write_text(text)
    return import_files([path]).to_dict()


def flags(more: str) -> str:
    return (
        f"python pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 {more}\n"
    )


def test_a_script_with_variables_and_arrays_becomes_a_job() -> None:
    answer = import_files([SCRIPT]).to_dict()
    job = answer["job"]
    assert "megatron" == answer["source_format"]
    assert {"gpus": 128} == job["cluster"]
    assert {"global_batch_size": 128, "sequence_length": 8192, "precision": "fp8_current", "optimizer": None} == {
        key: job["workload"].get(key) for key in ("global_batch_size", "sequence_length", "precision", "optimizer")
    }
    plan = {
        "tensor_parallel": 4, "pipeline_parallel": 2, "chunks_per_rank": 4, "schedule": "interleaved_1f1b", "zero_stage": 1,
        "sequence_parallel": True, "overlap_gradients": True, "overlap_parameters": True, "recompute": "full",
        "recompute_method": "block", "recompute_layers": 2, "microbatch_size": 1, "dropout": False, "framework": "megatron_core",
    }  # fmt: skip
    assert plan == job["plan"]


def test_its_model_is_the_shipped_one(tmp_path: Path) -> None:
    model = load_any_job(str(SCRIPT), (), None, "dgx_h100").workload.model
    assert load_model("llama3_8b").parameters == model.parameters


@pytest.mark.parametrize("flag", ["--use-rotary-position-embeddings", "--position-embedding-type rope"])
def test_where_positions_are_said_is_told(flag: str, tmp_path: Path) -> None:
    read = {one["field"]: one for one in imported(tmp_path, flags(flag))["read"]}
    assert "rotary" == read["model.positions"]["value"]
    assert read["model.positions"]["place"].endswith(f"train.sh, line 1: {flag}")


def test_every_line_is_accounted_for() -> None:
    answer = import_files([SCRIPT]).to_dict()
    lost = {line["text"]: line["place"] for line in answer["not_understood"]}
    assert {"--frobnicate 3"} == set(lost)
    assert lost["--frobnicate 3"].endswith("megatron.sh, line 50")
    idle = " ".join(line["text"] for line in answer["no_effect"])
    for text in ("--lr 3e-4", "--data-path $1", "--job-name=eight-billions", "EXTRA+=( ... ) (does not run)"):
        assert text in idle
    assert any("line 31: --swiglu" in read["place"] for read in answer["read"] if read["field"] == "model.gated_mlp")


def test_nothing_of_a_script_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = f"X=$(touch {mark})\ntouch {mark}\n`touch {mark}`\nA=$((__import__('os').system('touch {mark}')))\n" + flags(
        "--foo $X $A"
    )
    imported(tmp_path, text)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("--ffn-hidden-size 4096", "ffn", 4096),
        ("", "ffn", 4096),
        ("--swiglu", "ffn", 2688),
        ("--kv-channels 128", "head_dim", 128),
        ("--num-experts 8 --moe-router-topk 2 --moe-layer-freq '([0]*3+[1]*21)'", "dense_layers", 3),
        ("--num-experts 8 --moe-layer-freq [0,1]*12", "moe_every", 2),
        ("--multi-latent-attention --kv-lora-rank 512 --qk-head-dim 64", "qk_nope_head_dim", 64),
        ("--window-size 127,0", "window", 128),
        ("--tokenizer-type GPT2BPETokenizer", "vocabulary", 50257),
    ],
)
def test_models(tmp_path: Path, text: str, field: str, value: object) -> None:
    assert value == imported(tmp_path, flags(text))["job"]["workload"]["model"][field]


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("--sequence-parallel", {"sequence_parallel": None}),
        ("--data-parallel-sharding-strategy optim_grads_params --use-megatron-fsdp", {"zero_stage": 3, "overlap_gradients": None}),
        ("--context-parallel-size 2 --cp-comm-type a2a", {"context_parallel_kind": "ulysses"}),
        ("--recompute-activations", {"recompute": "selective"}),
        ("--recompute-granularity full --recompute-method uniform", {"recompute_method": "uniform", "recompute_layers": 1}),
        (
            "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*5|t*7|t*7|t*5L'",
            {"layer_split": [5, 7, 7, 5], "chunks_per_rank": None},
        ),
        ("--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 10", {"layer_split": [10, 14]}),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", {"optimizer_offload": 0.5}),
        (
            "--tensor-model-parallel-size 2 --recompute-granularity full --recompute-method uniform --distribute-saved-activations",
            {"partition_activations": True},
        ),
        ("--attention-backend unfused", {"attention": "unfused"}),
        ("--no-gradient-accumulation-fusion", {"gradient_accumulation_fusion": False, "framework": "megatron_core"}),
        ("--use-legacy-models", {"framework": "megatron_lm_2023"}),
        ("--ddp-bucket-size 40000000 --overlap-grad-reduce", {"bucket_size": "160000000 B"}),
        (
            "--num-experts 4 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall --moe-permute-fusion",
            {"expert_exchange": "all_to_all", "expert_permute_fusion": True},
        ),
        (
            "--num-experts 4 --expert-model-parallel-size 2 --moe-token-dispatcher-type flex --moe-enable-deepep",
            {"expert_exchange": "once_per_node"},
        ),
        ("--tensor-model-parallel-size=2", {"tensor_parallel": 2}),
        ("--tensor_model_parallel_size 2", {"tensor_parallel": 2}),
    ],
)  # fmt: skip
def test_plans(tmp_path: Path, text: str, plan: dict[str, object]) -> None:
    found = imported(tmp_path, flags(text))["job"]["plan"]
    assert plan == {key: found.get(key) for key in plan}


def test_what_the_file_does_not_decide_is_absent(tmp_path: Path) -> None:
    text = flags("--tensor-model-parallel-size ${TP} --micro-batch-size 2").replace("pretrain_gpt", "train")
    job = imported(tmp_path, text)["job"]
    assert {} == job["cluster"]
    assert "vocabulary" not in job["workload"]["model"]
    assert "global_batch_size" not in job["workload"]
    assert "tensor_parallel" not in job["plan"]
    assert "data_parallel" not in job["plan"]


def test_an_unknown_variable_is_listed_with_its_line(tmp_path: Path) -> None:
    answer = imported(tmp_path, "A=1\n" + flags("--tensor-model-parallel-size ${TP}"))
    assert any("line 2" in one["place"] and "${TP}" in one["text"] for one in answer["not_understood"])


def test_the_batch_follows_from_the_gpus_where_it_is_not_said(tmp_path: Path) -> None:
    answer = imported(
        tmp_path, "torchrun --nproc_per_node 8 --nnodes 2 " + flags("--micro-batch-size 2").removeprefix("python ")
    )
    assert (16, 32) == (answer["job"]["cluster"]["gpus"], answer["job"]["workload"]["global_batch_size"])


def test_yaml_has_the_same_names(tmp_path: Path) -> None:
    text = "language_model:\n  num_layers: 24\n  hidden_size: 1024\n  num_attention_heads: 16\n  frob: x\n"
    text += "model_parallel:\n  tensor_model_parallel_size: 2\n"
    answer = imported(tmp_path, text, "train.yaml")
    assert (2, 24) == (answer["job"]["plan"]["tensor_parallel"], answer["job"]["workload"]["model"]["layers"])
    assert [("train.yaml, line 5", "language_model.frob: x")] == [
        (one["place"].rsplit("/", 1)[-1], one["text"]) for one in answer["not_understood"]
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (flags("--micro-batch-size many"), "line 1: --micro-batch-size many: expected a whole number above zero"),
        (flags("--tensor-model-parallel-size 0"), "above zero"),
        ("ARGS=(--num-layers 2\n--hidden-size 3\n" + flags(""), "line 1: ARGS=( is not closed"),
        (flags("--data 'x"), "a quote (') is not closed"),
        (flags('--data "x'), 'a quote (") is not closed'),
        ("A=x\n" + "A=$A$A\n" * 30 + flags("$A"), "more than a million characters"),
    ],
)
def test_bad_scripts_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        imported(tmp_path, text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("A='x y'\nrun $A \"$A\"", ["run", "x", "y", "x y"]),
        ("A=(1 '2 3')\nrun \"${A[@]}\" ${A[@]}", ["run", "1", "2 3", "1", "2", "3"]),
        ("A=1\nA+=2\nrun $A", ["run", "12"]),
        ("A=(1)\nA+=(2 # no\n 3)\nrun ${A[*]}", ["run", "1", "2", "3"]),
        ("run ${A:-7} $((2*3+1))", ["run", "7", "7"]),
        ("B=3; run $(( B * 2 )) $((${B}-1))", ["run", "6", "2"]),
        ("run \\\n a \\\n b # c", ["run", "a", "b"]),
        ("if [ 1 -gt 2 ]; then A=1; else A=2; fi\nrun $A", ["run", "2"]),
        ("M=b\ncase $M in\n a) A=1;;\n b) A=2;;\n *) A=3;;\nesac\nrun $A", ["run", "2"]),
        ("export A=5 B=6\nrun $A$B", ["run", "56"]),
        ("cat <<END\nA=9\nEND\nrun $A", ["run", "$A"]),
        ("A=1\n[ -n \"$X\" ] && A=2\nrun $A", ["run", "1"]),
        ("run $1 `date` $(date)", ["run", "$1", "`date`", "$(date)"]),
        ("run 'a'\"b\"c\\ d", ["run", "abc d"]),
    ],
)  # fmt: skip
def test_shell_words(script: str, words: list[str]) -> None:
    assert words == [word.text for word in read_script(script, "x.sh").commands[-1].words]


def test_branches_that_cannot_be_decided_are_listed() -> None:
    script = read_script('if [ "$HOST" = a ]; then\nA=1\nfi\nrun $A', "x.sh")
    assert [1, 2] == [line for line, _ in script.skipped]


def test_layout_strings() -> None:
    assert 32 == len(stages_of("Ettt|(tt|)*29,m|L") or [])
    assert stages_of("t*9999999") is None


def test_a_script_of_another_trainer_is_not_taken_for_megatrons() -> None:
    from simulator.importers import IMPORTERS

    document = Document("x.sh", b"python train.py --epochs 3\n")
    assert [0] * len(IMPORTERS.members) == [one.recognises(document) for one in IMPORTERS]


def test_megatron_deepspeed_is_known_by_its_own_flag(tmp_path: Path) -> None:
    """Its stage of ZeRO, Ulysses' degree and that of the experts; its JSON is a file beside."""
    more = "--deepspeed --deepspeed_config ds.json --zero-stage 3 --ds-sequence-parallel-size 4 --use-flash-attn-v2 --no-pipeline-parallel"
    answer = imported(tmp_path, flags(f"--bf16 {more}"))
    plan = answer["job"]["plan"]
    want = {"framework": "megatron_deepspeed_bf16", "zero_stage": 3, "context_parallel": 4, "context_parallel_kind": "ulysses",
            "attention": "flash2", "overlap_gradients": None}  # fmt: skip
    assert want == {key: plan.get(key) for key in want}
    assert ["--deepspeed_config ds.json (give that file beside this one)"] == [
        line["text"] for line in answer["not_understood"]
    ]
    assert "megatron_deepspeed" == imported(tmp_path, flags("--fp16 --deepspeed"))["job"]["plan"]["framework"]
    states = {kind: imported(tmp_path, flags(f"--{kind} --deepspeed --zero-stage 0")) for kind in ("fp16", "bf16")}
    assert {"fp16": 0, "bf16": 1} == {kind: one["job"]["plan"]["zero_stage"] for kind, one in states.items()}


@pytest.mark.parametrize(
    ("more", "field", "value"),
    [
        ("--position-embedding-type alibi", "positions", "alibi"),
        ("--position-embedding-type rotary", "positions", "rotary"),
        ("--pad-vocab-size-to 250880 --tokenizer-type PretrainedFromHF", "vocabulary", 250880),
        ("--tokenizer-type BertWordPieceLowerCase", "vocabulary", 30522),
    ],
)
def test_words_of_megatrons_older_relatives(tmp_path: Path, more: str, field: str, value: Any) -> None:
    answer = imported(tmp_path, flags(more))
    assert (value, []) == (answer["job"]["workload"]["model"][field], answer["not_understood"])


@pytest.mark.parametrize(
    "text",
    [
        "MODEL_ARGS=(\n  --num-layers 24\n  --hidden-size 1024\n  --num-attention-heads 16\n)\n",
        'MODEL_ARGS="--num-layers 24 --hidden-size 1024 \\\n  --num-attention-heads 16"\n',
        "HIDDEN=1024\nA=(--num-layers 24 --num-attention-heads 16)\nB=(--hidden-size $HIDDEN --seq-length 2048)\n",
    ],
)
def test_flags_that_a_script_keeps_for_the_one_that_sources_it(tmp_path: Path, text: str) -> None:
    answer = imported(tmp_path, text)
    model = answer["job"]["workload"]["model"]
    assert (24, 1024, 16) == (model["layers"], model["hidden"], model["heads"])
    assert any("sources" in one["why"] for one in answer["assumed"])


def test_kernels_that_are_not_the_ones_that_are_priced_are_said(tmp_path: Path) -> None:
    answer = imported(
        tmp_path, flags("--transformer-impl local --no-masked-softmax-fusion --no-bias-gelu-fusion --num-experts 8")
    )
    assert ["--no-bias-gelu-fusion", "--no-masked-softmax-fusion", "--transformer-impl"] == sorted(
        line["text"].split()[0] for line in answer["not_understood"]
    )
    assert ["moe_grouped_gemm"] == [one["field"] for one in answer["assumed"] if "expert after the other" in one["why"]]
    grouped = imported(tmp_path, flags("--transformer-impl transformer_engine --num-experts 8 --moe-grouped-gemm"))
    assert [] == grouped["not_understood"] + [one for one in grouped["assumed"] if one["field"] == "moe_grouped_gemm"]


@pytest.mark.parametrize(
    ("program", "vocabulary", "fields"),
    [
        ("pretrain_gpt.py", 50257, {"architecture": None}),
        ("pretrain_bert.py", 30522, {"architecture": "encoder", "token_types": 2, "pooler": True, "layers": 24}),
        (
            "pretrain_t5.py",
            30522,
            {"architecture": "encoder_decoder", "encoder_layers": 24, "layers": 24, "target_length": 128},
        ),
        ("train.py", None, {"architecture": None}),
    ],
)
def test_the_program_that_is_launched_decides_architecture_and_vocabulary(
    tmp_path: Path, program: str, vocabulary: int | None, fields: dict[str, Any]
) -> None:
    text = flags("--max-position-embeddings 512 --encoder-seq-length 512").replace("pretrain_gpt.py", program)
    model = imported(tmp_path, text)["job"]["workload"]["model"]
    assert fields | {"vocabulary": vocabulary} == {name: model.get(name) for name in (*fields, "vocabulary")}
    elsewhere = imported(tmp_path, f"TOKENIZER_MODEL=$1\n{text}")["job"]["workload"]["model"]
    assert "vocabulary" not in elsewhere, "the script speaks of a tokenizer in lines that are not read"


def test_stacks_of_t5_may_differ_and_a_job_is_made_of_it(tmp_path: Path) -> None:
    path = tmp_path / "t5.sh"
    more = "--decoder-num-layers 12 --decoder-seq-length 64 --max-position-embeddings 512 --micro-batch-size 1 --bf16"
    path.write_text(flags(more).replace("pretrain_gpt.py", "pretrain_t5.py"))
    model = load_any_job(str(path), (), None, "dgx_h100").workload.model
    assert (24, 12, 64) == (model.encoder_layers, model.layers, model.target_length)


def test_what_a_script_leaves_to_another_file_is_asked_for_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text(flags("--max-position-embeddings 512 --micro-batch-size 1 --bf16 --tokenizer-type Llama3Tokenizer"))
    with pytest.raises(SpecError, match=r"Way out: --set model\.vocabulary=VALUE"):
        load_any_job(str(path), (), None, "dgx_h100")


@pytest.mark.parametrize(("name", "stage"), [("muon", None), ("dist_muon", 1)])
def test_muon_with_and_without_shared_states(tmp_path: Path, name: str, stage: int | None) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        f"torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 512 --optimizer {name} --bf16"
    )
    job = import_files([script]).job()
    assert ("muon", stage) == (job["workload"]["optimizer"], job["plan"].get("zero_stage"))


def test_a_second_number_format_is_not_dropped_in_silence(tmp_path: Path) -> None:
    """Megatron refuses --bf16 beside --fp16; what is taken, and what is not, is told."""
    answer = imported(tmp_path, flags("--max-position-embeddings 512 --micro-batch-size 1 --bf16 --fp16"))
    assert "bf16" == answer["job"]["workload"]["precision"]
    assert any("--fp16" in line["place"] and "beside bf16" in line["text"] for line in answer["not_understood"])
