"""Training logs of Megatron-LM, torchtitan, DeepSpeed, NeMo, Megatron-Bridge and the Hugging Face Trainer: measured steps.

Each format is known by the phrase before its number; the phrases were read in NVIDIA/Megatron-LM megatron/training/training.py,
pytorch/torchtitan components/metrics.py, deepspeedai/DeepSpeed utils/timer.py and runtime/pipe/engine.py, NVIDIA/NeMo's and
NVIDIA-NeMo/Megatron-Bridge's training loops, and tqdm's bar.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from simulator.errors import SpecError
from simulator.importers.base import Importer
from simulator.importers.document import Document
from simulator.importers.imported import Findings
from simulator.importers.steps import Steps, Unit
from simulator.units import parse

__all__ = ["TrainingLog"]

_NUMBER = rb"[^\S\n]{0,8}([0-9][0-9,]{0,15}(?:\.[0-9]{0,12})?(?:[eE][-+]?[0-9]{1,3})?)"


@dataclass(frozen=True, slots=True)
class _Phrase:
    """A phrase before a number.

    Args:
        factor: the unit of a time, to be parsed; "" = the rate named by `unit`.
    """

    program: str
    pattern: re.Pattern[bytes]
    unit: Unit
    factor: str = ""


def _phrase(program: str, text: bytes, unit: Unit, factor: str = "") -> _Phrase:
    return _Phrase(program, re.compile(text + _NUMBER), unit, factor)


_PHRASES = (
    _phrase("Megatron-LM", rb"elapsed time per iteration \(ms\):", "seconds", "ms"),
    _phrase("Megatron-LM", rb"elapsed time per iteration \(s\):", "seconds", "s"),
    _phrase("NeMo", rb"train_step_timing in s[:=]", "seconds", "s"),
    _phrase("Megatron-Bridge", rb"Step Time[^\S\n]?:", "seconds", "s"),
    _phrase("DeepSpeed pipeline", rb"iter time \(s\):", "seconds", "s"),
    _phrase("torchtitan", rb"\btps:", "tokens/s/GPU"),
    _phrase("DeepSpeed", rb"CurrSamplesPerSec=", "samples/s"),
)
_TQDM = re.compile(
    rb"\| *[0-9]{1,9}/[0-9]{1,9} \[[0-9:]{4,12}<[0-9:?]{1,12}, *([0-9]{1,9}(?:\.[0-9]{1,6})?)(s/it|it/s)"
)
_SUMMARY = re.compile(rb"train_steps_per_second'?\"?[:=]" + _NUMBER)
_BATCH = re.compile(rb"global batch size:" + _NUMBER)
_TFLOPS = re.compile(rb"(?:throughput per GPU \(TFLOP/s/GPU\):|\btflops:)" + _NUMBER)
_MEMORY = (
    (re.compile(rb"\bmemory:" + _NUMBER + rb"GiB"), "GiB"),
    (re.compile(rb"max reserved:" + _NUMBER), "MiB"),
    (re.compile(rb"MaxMemAllocated=" + _NUMBER + rb"GB"), "GiB"),
)
_COLOURS = re.compile(rb"\x1b\[[0-9;]{0,12}m")
_MOST_LINES = 2_000_000


class TrainingLog(Importer):
    """The log of a training run."""

    name = "training_log"
    title = "training log (Megatron-LM, torchtitan, DeepSpeed, NeMo, Megatron-Bridge, Hugging Face)"
    aliases = ("log",)

    def recognises(self, document: Document) -> int:
        """Look for a phrase that stands before a step's time or rate."""
        if document.form != "text":
            return 0
        data = _plain(document.data)
        if any(one.pattern.search(data) for one in _PHRASES):
            return 3
        return 2 if _TQDM.search(data) or _SUMMARY.search(data) else 0

    def read(self, document: Document) -> Findings:
        """Return the measured steps.

        Raises:
            SpecError: no line has a time above zero.
        """
        data = _plain(document.data)
        findings = Findings(self.name)
        program, unit, values = _values(data)
        if not values:
            raise SpecError(f"{document.place}: no line of this log tells a step's time or rate")
        batches = [int(_number(m.group(1))) for m in _BATCH.finditer(data)]
        if batches and len(batches) == len(values) and unit == "seconds":
            values = [v for v, b in zip(values, batches, strict=True) if b == batches[-1]]
        tflops = [_number(m.group(1)) for m in _TFLOPS.finditer(data)]
        findings.steps = Steps(
            place=document.place,
            unit=unit,
            values=tuple(values),
            batch=batches[-1] if batches else None,
            memory=_memory(data),
            tflops=sorted(tflops)[len(tflops) // 2] if tflops else 0.0,
        )
        findings.source_format = f"{self.name} ({program})"
        if batches:
            findings.put("workload.global_batch_size", batches[-1], f"{document.place}: global batch size")
        return findings


def _plain(data: bytes) -> bytes:
    """The log without a terminal's colours."""
    return _COLOURS.sub(b"", data) if b"\x1b[" in data else data


def _values(data: bytes) -> tuple[str, Unit, list[float]]:
    """Times or rates of the first phrase that the log has."""
    for phrase in _PHRASES:
        found = [_number(m.group(1)) for _, m in zip(range(_MOST_LINES), phrase.pattern.finditer(data), strict=False)]
        found = [parse(f"{v} {phrase.factor}", "s") if phrase.factor else v for v in found if 0 < v < 1e15]
        if found:
            return phrase.program, phrase.unit, found
    bars: list[float] = []
    for _, match in zip(range(_MOST_LINES), _TQDM.finditer(data), strict=False):
        value = _number(match.group(1))
        if value > 0:
            bars.append(value if match.group(2) == b"s/it" else 1.0 / value)
    if bars:
        return "Hugging Face progress bar", "seconds", bars
    rates = [_number(m.group(1)) for m in _SUMMARY.finditer(data)]
    return "Hugging Face summary", "seconds", [1.0 / rate for rate in rates if rate > 0]


def _number(text: bytes) -> float:
    return float(text.replace(b",", b""))


def _memory(data: bytes) -> float:
    """The largest peak of memory that the log names [B]."""
    for pattern, unit in _MEMORY:
        found = [_number(m.group(1)) for m in pattern.finditer(data)]
        if found:
            return parse(f"{max(found)} {unit}", "B")
    return 0.0
