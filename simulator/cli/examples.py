"""What `dtsim VERB --help` ends with: commands to copy, for every verb.  A test runs them."""

from __future__ import annotations

__all__ = ["EXAMPLES", "epilog"]

EXAMPLES = {
    "run": (
        "dtsim run gpt3_175b --plot step.png",
        "dtsim run --model llama3_8b --cluster h100_x8 --set plan.zero_stage=3 --report step.html",
        "dtsim run train.sh --cluster dgx_h100 --measured train.log",
        "dtsim run gpt3_175b --set cluster.nodes=64 --tokens 300B --set 'cluster.price_per_gpu_hour=2.5 $/h'",
    ),
    "explain": ("dtsim explain gpt3_13b_2xdgx_a100",),
    "schedule": (
        "dtsim schedule chimera -p 4 -m 4",
        "dtsim schedule 1f1b,zb_h1,zbv -p 8 -m 16 --format png -o three.png",
        "dtsim schedule all -p 8 -m 16 --format table -o all.csv",
        "dtsim schedule 1f1b,interleaved_1f1b -p 8 -m 32 -v 2 --latency-sweep 0,0.2,0.5",
        "dtsim schedule auto -p 4 -m 8 --memory-limit 3 --forward 1,1.2,1,1",
    ),
    "search": (
        "dtsim search gpt3_13b_2xdgx_a100 --range zero_stage=0,1,3 --range tp=2,4,8 -o plans.csv",
        "dtsim search --model llama3_70b --cluster dgx_h100 --fix cluster.gpus=512 -o job.toml",
    ),
    "fit": (
        "dtsim fit llama3_8b --cluster dgx_h100 --fewest gpus",
        "dtsim fit llama3_8b --cluster h100_x8 --largest sequence --fix plan.recompute=full",
    ),
    "plan": (
        "dtsim plan bert24_training --planner ideals,local_search --plot planners.png",
        "dtsim plan vgg16 --problem synchronous --devices 8 --bandwidth '1 GB/s' --microbatches 8",
        "dtsim plan gpt2_124m --problem layout --mesh tensor=8 --batch 2",
        "dtsim plan vgg19 --problem drained --devices 8,2 --bandwidth '25 GB/s,3 GB/s' --microbatches 64",
        "dtsim plan gpt2_124m --problem meshes --cluster dgx_a100 --devices 4 --batch 16 --microbatches 4",
        "dtsim plan bert32a100 --problem hybrid --devices 64 --memory '8 GiB' --bandwidth '25 GiB/s'",
        "dtsim plan vgg16 --problem pipeline --devices 4,4 --bandwidth '1 GB/s,1.25 GB/s'",
        "dtsim plan hetpipe_vgg19 --problem unlike_replicas",
    ),
    "advise": ("dtsim advise --model gpt3_13b --cluster dgx_a100",),
    "sweep": (
        "dtsim sweep study.toml -o study.parquet --plot study.png",
        "dtsim sweep study.toml -o study.parquet --resume",
    ),
    "capture": ("dtsim capture train.py --world 64 -o step.program",),
    "goodput": ("dtsim goodput llama3_405b_16384xh100 --days 54 --samples 200 -o runs.parquet",),
    "compare": (
        "dtsim compare gpt3_175b --schedule all --sort tokens/s --only fits",
        "dtsim compare gpt3_175b --zero 0,1 --vary plan.recompute=none,full --plot rows.png -o rows.csv",
        "dtsim compare gpt3_13b_2xdgx_a100 --vary cluster.gpu=a100_80gb_sxm,h100_80gb_sxm --vary cluster.nodes=2,4",
        "dtsim compare gpt3_175b gpt3_13b_2xdgx_a100 --plot both.png",
        "dtsim compare gpt3_13b_2xdgx_a100 --gpus 16,32,64 --scaling weak",
    ),
    "collective": (
        "dtsim collective all_reduce --size 1GiB --cluster dgx_h100 --ranks 16 --nodes 2",
        "dtsim collective all_gather --sizes 1KiB:1GiB --cluster dgx_h100 --ranks 8 --plot gather.png -o gather.csv",
    ),
    "layout": (
        "dtsim layout gpt3_13b --mesh rows=8,cols=8 --map batch=rows --map ffn=cols --map heads=cols --map vocab=cols",
        "dtsim layout gpt3_13b --mesh rows=8,tensor=8 --layout megatron --map batch=rows --cluster dgx_a100 --plot who.png",
        "dtsim layout gpt2_124m --mesh rows=2,cols=2 --map batch=rows --map 'mlp up weight.ffn=cols' --propagate",
        "dtsim layout gpt2_124m --mesh rows=2,cols=2 --map batch=rows --map 'mlp up weight.ffn=cols' --choose",
        "dtsim layout gpt2_124m --mesh depth=2,rows=2,cols=2 --batch 8 --compare summa_2d,tesseract,cubic_3d",
        "dtsim layout gpt2_124m --mesh tensor=4 --compare megatron,whole_vocabulary --cluster dgx_a100",
    ),
    "calibrate": ("dtsim calibrate nccl LOG... --cluster dgx_h100 --output nccl_my.toml",),
    "measure": ("dtsim measure gemm --output measured",),
    "validate": (
        "dtsim validate --leave-one-out",
        "dtsim validate RUNS.csv -o errors.csv --report errors.html",
    ),
    "serve": ("dtsim serve --port 8765",),
    "import": (
        "dtsim import train.sh --cluster dgx_h100 -o my_job.toml",
        "dtsim import ds_config.json --json",
        "dtsim import step.0.et step.groups.json",
    ),
    "export": (
        "dtsim export megatron gpt3_175b --output megatron.sh",
        "dtsim export torch-csv gpt3_175b",
        "dtsim export chrome gpt3_13b_2xdgx_a100",
    ),
    "notebooks": ("dtsim notebooks lessons",),
    "init": ("dtsim init --model llama3_8b --cluster h100_x8 --output new.toml",),
    "list": ("dtsim list", "dtsim list schedules"),
    "show": (
        "dtsim show gpus h100_80gb_sxm",
        "dtsim show option zero_stage",
        "dtsim show program gpt2_124m_1gpu --rows 20",
    ),
}
"""Verb -> its examples, the first one first to try."""


def epilog(verb: str) -> str | None:
    """Return the examples as the end of a help page: one a line, which is not broken; None where there are none."""
    lines = EXAMPLES.get(verb)
    return None if lines is None else "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
