"""The step as a Chrome trace, for ui.perfetto.dev and chrome://tracing.

A pipeline rank is a process, each of its streams a thread; a row is a slice on every stream that it holds.  Messages
are arrows from the sender's slice to the receiver's, memory is a counter per rank.  The viewers want microseconds.

Source: "Trace Event Format" (Google, 2016): phases X, M, C, s and f.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.program.prices import ACCOUNTS, Prices
from simulator.program.program import CATEGORIES, KIND_NAMES, TRANSFER, Item, Link, Program
from simulator.program.trace import Trace
from simulator.report.kinds import kernel_seconds, message_bytes
from simulator.report.memory import memory_timeline
from simulator.report.prediction import Prediction
from simulator.report.window import step_window
from simulator.specs import replacing, write_text
from simulator.units import parse
from simulator.workload.workload import Workload

__all__ = ["export_chrome_trace", "write_prediction"]

_MICROSECOND = parse("1 us", "s")
_LANES = ("compute", "tp", "cp", "ep", "dp", "copy")
"""Order of the threads of a rank; the pipeline channels follow."""


def export_chrome_trace(
    program: Program,
    prices: Prices,
    trace: Trace,
    path: str | Path,
    *,
    step_time: float | None = None,
    batch: int | None = None,
) -> Path:
    """Write the trace to `path`, gzipped if that ends in `.gz`; return the path.

    Under `otherData` stands what `dtsim run --measured` reads (`simulator.importers.dtsim_trace`): a step's seconds, and its work by kind.

    Args:
        step_time: of a step [s], where it is not that of the trace alone.
        batch: sequences of a step, where they are known.

    >>> import tempfile
    >>> from simulator.program.builder import ProgramBuilder, plain_segment
    >>> build = ProgramBuilder()
    >>> row = build.add_row(build.add_item(plain_segment("layer")), build.add_stream(build.add_rank(weight=16)))
    >>> prices = Prices.plain(np.ones(1), np.zeros(1))
    >>> trace = Trace(start=np.zeros(1), end=np.ones(1), engine="given")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     text = export_chrome_trace(build.build(), prices, trace, Path(folder) / "step.json").read_text()
    >>> json.loads(text)["traceEvents"][0]["args"]
    {'name': 'pipeline rank 0 (x16 ranks)'}
    """
    path = Path(path)
    moved, took = message_bytes(program), kernel_seconds(program, prices)
    about = json.dumps(
        {
            "program": program.name,
            "engine": trace.engine,
            "makespan_s": trace.makespan,
            "step_time_s": step_window(program, trace).step_time if step_time is None else step_time,
            "axes": {name: size for name, size in program.axes},
            "global_batch_size": batch,
            "operations": [
                {"kind": kind, "seconds": took.get(kind, 0.0), "bytes": moved.get(kind, 0.0)} for kind in took | moved
            ],
        }
    )
    events = [*_names(program), *_slices(program, prices, trace), *_flows(program, trace), *_counters(program, trace)]
    text = '{"traceEvents":[\n' + ",\n".join(events) + '\n],"displayTimeUnit":"ms","otherData":' + about + "}\n"
    if path.suffix == ".gz":
        with (
            replacing(path) as beside,
            beside.open("wb") as raw,
            gzip.GzipFile(path.name, "wb", 4, raw, mtime=0) as file,
        ):
            file.write(text.encode())
    else:
        write_text(path, text)
    return path


def write_prediction(prediction: Prediction, path: str | Path) -> Path:
    """Write the trace of a prediction to `path`; return the path."""
    work = prediction.workload
    batch = work.global_batch_size if isinstance(work, Workload) else None
    parts = (prediction.program, prediction.prices, prediction.trace)
    return export_chrome_trace(*parts, path, step_time=prediction.step_time, batch=batch)


def _names(program: Program) -> Iterator[str]:
    """Metadata: what processes and threads are called and how they are sorted."""

    def event(name: str, pid: int, args: dict[str, Any], tid: int = 0) -> str:
        return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args})

    pipeline = dict(program.axes).get("pp", program.ranks)
    for rank, weight in enumerate(program.rank_weight.tolist()):
        kind = f", replicas of kind {rank // pipeline}" if program.ranks > pipeline else ""
        yield event("process_name", rank, {"name": f"pipeline rank {rank % pipeline}{kind} (x{weight:g} ranks)"})
        yield event("process_sort_index", rank, {"sort_index": rank})
    for stream, (rank, lane) in enumerate(zip(program.stream_rank.tolist(), program.stream_lane, strict=True)):
        yield event("thread_name", rank, {"name": lane}, stream)
        place = _LANES.index(lane) if lane in _LANES else len(_LANES) + stream
        yield event("thread_sort_index", rank, {"sort_index": place}, stream)


def _microseconds(seconds: NDArray[np.float64]) -> list[float]:
    """Rounded to a nanosecond, both edges of a slice in the same way: neighbours still meet and never overlap."""
    rounded: list[float] = np.round(seconds / _MICROSECOND, 3).tolist()
    return rounded


def _slices(program: Program, prices: Prices, trace: Trace) -> Iterator[str]:
    """One slice per row and stream, in order of start."""
    facts = [_facts(item, number, prices) for number, item in enumerate(program.items)]
    labels = [json.dumps(program.label(row)) for row in range(program.size)]
    start, end = _microseconds(trace.start), _microseconds(trace.end)
    columns = (program.item, program.chunk, program.microbatch, program.step)
    item, chunk, microbatch, step = (column.tolist() for column in columns)
    rows = program.row_of_stream_entry
    order = np.lexsort((rows, trace.start[rows]))
    streams = program.streams[order]
    for row, stream, rank in zip(
        rows[order].tolist(), streams.tolist(), program.stream_rank[streams].tolist(), strict=True
    ):
        at = start[row]
        yield (
            f'{{"ph":"X","pid":{rank},"tid":{stream},"ts":{at:.3f},"dur":{end[row] - at:.3f},"name":{labels[row]},'
            f'{facts[item[row]]},"row":{row},"chunk":{chunk[row]},"microbatch":{microbatch[row]},"step":{step[row]}}}}}'
        )


def _facts(item: Item, number: int, prices: Prices) -> str:
    """Category and the arguments that all rows of an item share, as the open beginning of JSON."""
    facts: dict[str, object] = {"item": item.name, "priced_by": prices.model[number]}
    if not isinstance(item, Link):
        category = item.phase
        facts["layers"] = sum(count for _, count in item.pieces)
        facts["accounts_s"] = {name: s for name, s in zip(ACCOUNTS, prices.account[number].tolist(), strict=True) if s}
    else:
        category = KIND_NAMES[item.kind]
        facts |= {"message_bytes": item.message, "group": "+".join(item.group), "account": item.account}
        facts |= {"collective": item.collective} if item.collective else {}
        facts |= {"placement": prices.placement[number]} if prices.placement[number] else {}
        facts["latency_s"] = float(prices.latency[number])
    return f'"cat":{json.dumps(category)},"args":{json.dumps(facts)[:-1]}'


def _flows(program: Program, trace: Trace) -> Iterator[str]:
    """A pair of events per transfer: out of the sender's slice, into the receiver's."""
    start, end = _microseconds(trace.start), _microseconds(trace.end)
    offsets, streams, ranks = program.stream_offsets.tolist(), program.streams.tolist(), program.stream_rank.tolist()
    for row in np.flatnonzero((program.kind == TRANSFER) & (np.diff(program.stream_offsets) > 1)).tolist():
        sender, receiver = streams[offsets[row]], streams[offsets[row] + 1]
        quarter = (end[row] - start[row]) / 4
        leaves, arrives = start[row] + quarter, end[row] - quarter
        same = f'"cat":"transfer","name":"message","id":{row}'
        yield f'{{"ph":"s",{same},"pid":{ranks[sender]},"tid":{sender},"ts":{leaves:.3f}}}'
        yield f'{{"ph":"f","bp":"e",{same},"pid":{ranks[receiver]},"tid":{receiver},"ts":{arrives:.3f}}}'


def _counters(program: Program, trace: Trace) -> Iterator[str]:
    """Bytes per category of each rank, whenever they change; categories that stay zero are left out."""
    tables = [memory_timeline(program, trace, rank) for rank in range(program.ranks)]
    used = [c for c in range(len(CATEGORIES)) if any(levels[:, c].any() for _, levels in tables)]
    if not used:
        return
    form = "{" + ",".join(f"{json.dumps(CATEGORIES[c])}:%.0f" for c in used) + "}"
    for rank, (times, levels) in enumerate(tables):
        changes = np.concatenate([[True], (np.diff(levels, axis=0) != 0).any(axis=1)])
        for at, values in zip(_microseconds(times[changes]), levels[changes][:, used].tolist(), strict=True):
            yield f'{{"ph":"C","name":"memory [bytes]","pid":{rank},"ts":{at:.3f},"args":{form % tuple(values)}}}'
