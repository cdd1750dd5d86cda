"""What a user meets whose script is recorded: an answer, or one message with its place and the way out; nothing left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulator.capture.child import capture
from simulator.errors import SpecError
from tests.package_sources import ROOT
from tests.properties.writers import begun_program, call

pytest.importorskip("torch", reason="recording a script needs torch: nox -s capture")
pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).parent / "scripts"

MODEL = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.zeros(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def refusal(tmp_path: Path, text: str, function: str = ":step", seconds: float = 120.0) -> str:
    script = tmp_path / "train.py"
    script.write_text(text)
    with pytest.raises(SpecError) as error:
        capture(f"{script}{function}", 2, seconds=seconds)
    return str(error.value)


def test_a_script_that_breaks_says_where(tmp_path: Path) -> None:
    said = refusal(tmp_path, MODEL + "\ndef step():\n    raise ValueError('no data here')\n")

    assert "ValueError: no data here" in said
    assert "train.py:11" in said


def test_a_script_that_hangs_is_ended_in_time(tmp_path: Path) -> None:
    start = time.monotonic()
    said = refusal(tmp_path, "import time\ntime.sleep(1000)\n", "", seconds=8.0)

    assert "--time-limit" in said
    assert time.monotonic() - start < 900.0


def test_a_script_that_shuffles_its_data_draws_every_place_once(tmp_path: Path) -> None:
    """And does not read a million numbers from a device."""
    script = tmp_path / "train.py"
    loader = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, place):
        return torch.full((64,), float(place))
class Drawn(torch.utils.data.RandomSampler):
    def __iter__(self):
        for place in super().__iter__():
            assert place not in seen
            seen.add(place)
            yield place
seen = set()
from torch.utils.data import DataLoader, DistributedSampler
batches = iter(DataLoader(Data(), batch_size=8, sampler=Drawn(Data())))
others = iter(DataLoader(Data(), batch_size=8, sampler=DistributedSampler(Data(), 2, 1)))
def step():
    model(next(batches) + next(others)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert len(seen) >= 8
"""
    script.write_text(MODEL + loader)

    found = capture(f"{script}:step", 2, seconds=60.0)
    assert not any(event.name == "host reads" for event in found.events)


def test_a_script_that_asks_for_a_gpu_is_told_the_way_out(tmp_path: Path) -> None:
    said = refusal(tmp_path, MODEL.replace("torch.zeros(8, 64)", "torch.zeros(8, 64, device='cuda')"))

    assert "train.py:6" in said
    assert "device = 'cpu'" in said


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("torch.cuda.set_device(0)", "asks for a GPU"),
        ("torch.zeros(4, device='cuda', requires_grad=True).sum().backward()", "asks for a GPU"),
        ("model(torch.zeros(8, 64)).detach().numpy()", "numbers of a tensor"),
        ("input('which data? ')", "EOFError"),
        (
            "import threading\n    threading.Thread(target=threading.Event().wait).start()\n    raise KeyError",
            "KeyError",
        ),
    ],
)
def test_what_a_script_cannot_have_is_said_at_once(line: str, says: str, tmp_path: Path) -> None:
    """It does not wait for anybody, nor for threads that run on."""
    start = time.monotonic()

    assert says in refusal(tmp_path, f"{MODEL}\ndef step():\n    {line}\n", seconds=300.0)
    assert time.monotonic() - start < 250.0


def test_a_script_that_saves_writes_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        MODEL.replace("optimizer.step()", f"optimizer.step()\n    torch.save(model.state_dict(), r'{tmp_path}/x.pt')")
    )

    assert 64 * 64 + 64 == capture(f"{script}:step", 1).parameters
    assert not (tmp_path / "x.pt").exists()


def test_a_recording_that_is_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    script, begun = tmp_path / "train.py", tmp_path / "begun"
    script.write_text(f"import time, pathlib\npathlib.Path(r'{begun}').touch()\ntime.sleep(1000)\n")
    code = f"from simulator.capture.child import capture; capture(r'{script}', 1)"
    environment = os.environ | {
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL) as process:
        while not begun.exists() and process.poll() is None:
            time.sleep(0.1)
        process.terminate()
        assert 143 == process.wait(60.0)
    assert not list(tmp_path.glob("dtsim-*"))


def test_a_script_without_steps_is_no_training_step(tmp_path: Path) -> None:
    assert "no training step" in refusal(tmp_path, "print('hello')\n", "")


def test_a_function_without_a_backward_is_no_training_step(tmp_path: Path) -> None:
    said = refusal(tmp_path, MODEL + "\ndef step():\n    model(torch.zeros(8, 64))\n")

    assert "no training step" in said
    assert "backward" in said


def test_a_function_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    assert "step" in refusal(tmp_path, MODEL, ":stepp")


def test_a_shape_that_depends_on_data_is_named(tmp_path: Path) -> None:
    said = refusal(tmp_path, MODEL + "\ndef step():\n    torch.nonzero(torch.ones(4))\n")

    assert "depends on data" in said
    assert "nonzero" in said


def test_a_model_that_is_compiled_is_recorded_as_eager_code_and_says_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MODEL.replace("torch.nn.Linear(64, 64)", "torch.compile(torch.nn.Linear(64, 64))"))
    notes = capture(f"{script}:step", 1).notes

    assert any("torch.compile" in note and "train.py:3" in note for note in notes)


@pytest.mark.parametrize(("name", "dtype"), [("bfloat16", "bf16"), ("float16", "fp16")])
def test_mixed_precision_of_a_gpu_is_what_a_gpu_would_do(name: str, dtype: str, tmp_path: Path) -> None:
    """Asked for by name it would be left out where there is none; no gradient is infinite, which the host waits to hear."""
    script = tmp_path / "train.py"
    step = """
scaler = torch.amp.GradScaler("cuda")
def step():
    with torch.autocast("cuda", dtype=torch.NAME):
        loss = model(torch.zeros(8, 64)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    script.write_text(MODEL + step.replace("NAME", name))
    found = capture(f"{script}:step", 1).events

    assert [dtype] * 2 == [event.dtype for event in found if event.work == "gemm"]
    assert 1 == sum(event.name == "host reads" for event in found)
    assert any(event.name.startswith("aten._foreach_add_") for event in found)


@pytest.mark.parametrize(
    "call", ["x, x, x, dropout_p=0.1, is_causal=True", "x, x, x[..., :16]", "x, x, x, None, 0.1, True"]
)
def test_attention_that_only_a_gpu_has_a_kernel_for_is_one_kernel(call: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    attend = (
        f"x = model(torch.zeros(8, 64)).view(1, 2, 8, 32)\n    torch.nn.functional.scaled_dot_product_attention({call})"
    )
    script.write_text(MODEL.replace("model(torch.zeros(8, 64))", attend))
    found = [event for event in capture(f"{script}:step", 1).events if event.work == "attention"]
    width = 24 if "..." in call else 32

    assert [("forward", 1), ("backward", 3)] == [(event.phase, event.launches) for event in found]
    assert {(1, 2, 8, width)} == {event.shape for event in found}
    assert 4 * 2 * 8 * 8 * width == found[0].flops


def test_a_parameter_that_is_converted_stays_the_same_parameter(tmp_path: Path) -> None:
    """As in PyTorch: what a code noted on it stays, and an optimizer made before updates it."""
    script = tmp_path / "train.py"
    script.write_text(
        MODEL.replace("optimizer =", "model.weight.noted = True\noptimizer =").replace("def step", "model.bfloat16()\ndef step", 1)
        .replace("zeros(8, 64)", "zeros(8, 64, dtype=torch.bfloat16)") + "\nassert model.weight.noted\n"
    )  # fmt: skip
    found = capture(f"{script}:step", 1)

    assert {s.bytes for s in found.storages if s.category == "weights"} == {2 * 64 * 64.0, 2 * 64.0}
    assert any(e.phase == "optimizer" and e.written for e in found.events)


def test_what_all_ranks_tell_each_other_in_objects_is_what_this_one_tells(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    said = "import torch.distributed as dist\nfound, run = [None] * 8, ['a name']\ndist.all_gather_object(found, dist.get_rank())\n"
    told = said + "dist.broadcast_object_list(run, src=0)\nassert (found, run) == ([0] * 8, ['a name'])\n"
    script.write_text(told + MODEL)

    assert any("train.py:3" in note for note in capture(f"{script}:step", 8).notes)


def test_memory_of_the_host_may_be_pinned(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MODEL.replace("torch.zeros(8, 64)", "torch.zeros(8, 64).pin_memory()"))

    assert 64 * 64 + 64 == capture(f"{script}:step", 1).parameters


def test_what_is_written_over_its_own_operand_is_read_too(tmp_path: Path) -> None:
    """`torch.exp(x, out=x)`, as Megatron-LM's loss does."""
    script = tmp_path / "train.py"
    line = "x = torch.zeros(8, 64)\n    torch.exp(x, out=x)\n    torch.exp(x, out=torch.empty(8, 64))\n    model("
    script.write_text(MODEL.replace("    model(", f"    {line}", 1))
    found = [event for event in capture(f"{script}:step", 1).events if event.name == "aten.exp"]

    assert [(4 * 8 * 64, 4 * 8 * 64)] * 2 == [(event.read, event.written) for event in found]


def test_a_script_that_leaves_early_says_so(tmp_path: Path) -> None:
    assert "left with 3" in refusal(tmp_path, "import sys\nsys.exit(3)\n", "")


def test_what_a_script_prints_stays_off_standard_output(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MODEL + "\nprint('loss', 1.0)\n")
    words = [sys.executable, "-m", "simulator", "capture", f"{script}:step", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)

    assert "loss 1.0" in done.stderr
    assert 64 * 64 + 64 == answer["parameters"]
    assert 2 * 8 * 64 * 64 == answer["flops"]["forward"]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_whoever_asked(tmp_path: Path, ending: signal.Signals) -> None:
    script, told = tmp_path / "train.py", tmp_path / "pid"
    script.write_text(
        "import os, pathlib, subprocess, sys, time\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], process_group=0)\n"
        f"pathlib.Path({str(told)!r}).write_text(f'{{os.getpid()}} {{other.pid}}')\n"
        "time.sleep(600)\n"
    )
    asked = subprocess.Popen(
        [sys.executable, "-m", "simulator", "capture", str(script)],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    _until(lambda: told.exists() and len(told.read_text().split()) == 2)
    asked.send_signal(ending)
    code = asked.wait(timeout=900)

    assert code == (130 if ending == signal.SIGINT else -signal.SIGKILL)
    _until(lambda: not any(_runs(int(pid)) for pid in told.read_text().split()))


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_recording_that_is_stopped_is_written_whole_or_not_at_all(tmp_path: Path, ending: signal.Signals) -> None:
    (tmp_path / "train.py").write_text(MODEL)
    words, out = ("capture", "train.py:step", "-o", "out.program"), tmp_path / "out.program"
    begun = time.monotonic()
    assert 0 == call(*words, where=tmp_path).returncode
    took, whole, draw = time.monotonic() - begun, out.read_bytes(), random.Random(7)
    for _ in range(4):
        out.unlink(missing_ok=True)
        asked = begun_program(tmp_path, *words)
        time.sleep(draw.random() * took)
        asked.send_signal(ending)
        said = asked.communicate(timeout=900)[1]
        assert not out.exists() or whole == out.read_bytes()
        assert "Traceback" not in said
        if ending == signal.SIGINT:
            assert asked.returncode in (0, 130, -signal.SIGINT), said
            assert {"train.py", "out.program"} >= {path.name for path in tmp_path.iterdir()} - {"__pycache__"}


def _until(true) -> None:
    end = time.monotonic() + 900.0
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_recorded_step_is_a_program_that_runs_on_any_cluster(tmp_path: Path) -> None:
    program = tmp_path / "step.program"
    words = [sys.executable, "-m", "simulator"]
    subprocess.run([*words, "capture", f"{SCRIPTS / 'fsdp2.py'}:step", "--world", "16", "-o", str(program)], check=True)
    times = []
    for cluster in ("dgx_h100", "dgx_a100"):
        done = subprocess.run(
            [*words, "run", str(program), "--cluster", cluster, "--json"], capture_output=True, text=True, check=True
        )
        times.append(json.loads(done.stdout)["step_time_s"]["value"])

    assert 0 < times[0] < times[1]


def test_what_is_written_in_other_operators_is_taken_apart_below_autograd(tmp_path: Path) -> None:
    """Casts and copies that a script's own dispatch mode asks for, where autograd is not in between."""
    script = tmp_path / "train.py"
    kernel = """
from torch.utils._python_dispatch import TorchDispatchMode
class Widens(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        if function is torch.ops.aten.addmm.default:
            out = out.to(torch.float64).t().reshape(-1).reshape(64, 8).t().to(torch.float32)
        return out
def step():
    with Widens():
        loss = model(torch.zeros(8, 64)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    script.write_text(MODEL + kernel)
    names = [event.name for event in capture(f"{script}:step", 1).events if event.phase == "forward"]

    assert names[names.index("aten.addmm") :] == [
        "aten.addmm",
        "aten._to_copy",
        "aten.clone",
        "aten._to_copy",
        "aten.sum",
        "aten.ones_like",
    ]


@pytest.mark.parametrize(("leave", "matrix"), [("", "fp32"), ("torch.set_float32_matmul_precision('high')", "tf32")])
def test_what_a_script_lets_a_gpu_do_in_tf32_is_recorded_so(tmp_path: Path, leave: str, matrix: str) -> None:
    """Convolutions by themselves, other products where it says so (PyTorch, notes/cuda: TensorFloat-32)."""
    script = tmp_path / "train.py"
    script.write_text(f"""
import torch
{leave}
model = torch.nn.Sequential(torch.nn.Conv1d(4, 8, 3), torch.nn.Flatten(), torch.nn.Linear(48, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.zeros(8, 4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""")
    products = {
        (event.name.split(".")[1], event.dtype) for event in capture(f"{script}:step", 1).events if event.work == "gemm"
    }

    convolved = {("convolution", "tf32"), ("convolution_backward", "tf32")}
    assert convolved | {("addmm", matrix), ("mm", matrix)} == products


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_grouped_products_of_any_format_are_recorded(tmp_path: Path, kind: str) -> None:
    """Experts as transformers 5 runs them; PyTorch's rule for tensors without data knows bf16 alone, its kernels more."""
    script = tmp_path / "train.py"
    script.write_text(f"""
import torch
weights = torch.nn.Parameter(torch.zeros(4, 64, 32, dtype=torch.{kind}))
optimizer = torch.optim.SGD([weights], lr=0.1)
def step():
    ends = torch.full((4,), 16, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    torch._grouped_mm(torch.zeros(64, 64, dtype=torch.{kind}), weights, offs=ends).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""")
    found = [event for event in capture(f"{script}:step", 1).events if event.name == "aten._grouped_mm"]
    form = {"float32": "fp32", "bfloat16": "bf16"}[kind]
    assert [("forward", (4, 16, 32, 64), form)] == [
        (one.phase, one.shape, one.dtype) for one in found if one.phase == "forward"
    ]
    assert any(one.phase == "backward" for one in found)
