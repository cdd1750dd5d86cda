"""Sweeps: every point once, whatever is killed on the way; points that cannot be say why."""

from __future__ import annotations

import copy
import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.cli.answers import ANSWERS
from simulator.errors import SpecError, UnknownNameError
from simulator.simulation import simulate_job
from simulator.studies.crew import Crew, cluster_crew, local_crew
from simulator.studies.journal import Journal
from simulator.studies.study_file import load_study
from simulator.studies.sweep import run_sweep
from tests.command import Dtsim

TEXT = """
name = "small"
model = "gpt3_1_3b"
cluster = "h100_x8"
set = ["workload.sequence_length=1024"]

[vary]
"workload.global_batch_size" = [8, 16]
"plan.zero_stage" = [0, 1, 3]
tp = [1, 2, 3]
"""
pytestmark = pytest.mark.usefixtures("little_remembered")
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def study(tmp_path: Path) -> str:
    file = tmp_path / "small.toml"
    file.write_text(TEXT)
    return str(file)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[dict[str, Any]]]:
    """The journal and the answer of an undisturbed sweep on one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "small.toml").write_text(TEXT)
    file = folder / "undisturbed.jsonl"
    with Journal(file) as journal:
        answer = run_sweep(load_study(str(folder / "small.toml")), journal, local_crew(1)).records()
    return file.read_bytes(), [dict(row) for row in answer]


@pytest.fixture
def rows(undisturbed: tuple[bytes, list[dict[str, Any]]], tmp_path: Path) -> list[dict[str, Any]]:
    """What an undisturbed sweep on one process answers; its journal lies beside."""
    (tmp_path / "undisturbed.jsonl").write_bytes(undisturbed[0])
    return copy.deepcopy(undisturbed[1])


def test_every_point_is_what_simulate_says(study: str, rows: list[dict[str, Any]]) -> None:
    found = load_study(study)
    assert [row["point"] for row in rows] == list(range(found.size)) == list(range(18))
    for row in rows[::4]:
        if row["status"] == "ok":
            assert row["step_time_s"] == simulate_job(found.job(row["point"])).step_time
    refused = [row for row in rows if row["status"] == "refused"]
    assert {row["plan.tensor_parallel"] for row in refused} == {3}
    assert all("Nearest" in row["reason"] for row in refused)


def test_the_answer_does_not_depend_on_the_workers(study: str, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    with Journal(tmp_path / "two.jsonl") as journal:
        assert run_sweep(load_study(study), journal, local_crew(2)).records() == rows


def test_resumed_points_are_not_computed_again(study: str, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "undisturbed.jsonl"
    before = file.read_bytes()
    with Journal(file) as journal:
        again = run_sweep(load_study(study), journal, _no_crew())
    assert (again.records(), again.found) == (rows, 18)
    assert file.read_bytes() == before
    cut = before[: len(before) // 2]  # as a kill in the middle of a line leaves it
    file.write_bytes(cut)
    with Journal(file) as journal:
        resumed = run_sweep(load_study(study), journal, local_crew(1))
    assert resumed.records() == rows
    assert 0 < resumed.found < 18
    assert file.read_bytes().startswith(cut[: cut.rindex(b"\n") + 1])
    assert len(set(file.read_bytes().splitlines())) == 18


def _no_crew() -> Crew:
    def start() -> Any:
        raise AssertionError("nothing was to be computed")

    return Crew(start, 1)


def test_a_study_that_grew_takes_over_what_is_there(study: str, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    Path(study).write_text(TEXT.replace("[8, 16]", "[4, 8, 16]").replace("tp = [1, 2, 3]", "tp = [3, 2, 1]"))
    with Journal(tmp_path / "undisturbed.jsonl") as journal:
        found = run_sweep(load_study(study), journal, local_crew(1))
    assert (found.found, found.counts["ok"] + found.counts["refused"]) == (18, 27)
    same = [row for row in found.records() if row["workload.global_batch_size"] > 4]
    times = {
        (row["workload.global_batch_size"], row["plan.zero_stage"], row["plan.tensor_parallel"]): row for row in rows
    }
    for row in same:
        before = times[row["workload.global_batch_size"], row["plan.zero_stage"], row["plan.tensor_parallel"]]
        assert row | {"point": 0} == before | {"point": 0}


def test_other_data_or_another_version_is_computed_anew(
    study: str, rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import simulator

    monkeypatch.setattr(simulator, "__version__", "another")
    with Journal(tmp_path / "undisturbed.jsonl") as journal:
        again = run_sweep(load_study(study), journal, local_crew(1))
    assert again.found == 0
    assert len(rows) == len(again.records())


def test_a_fault_of_one_point_is_a_result(study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.studies import sweep

    plain = sweep.simulate_job

    def faulty(job: Any) -> Any:
        if job.workload.global_batch_size == 16:
            raise ZeroDivisionError("planted")
        return plain(job)

    monkeypatch.setattr(sweep, "simulate_job", faulty)  # worker processes are forked from this one
    with Journal(tmp_path / "faulty.jsonl") as journal:
        found = run_sweep(load_study(study), journal, local_crew(1))
    bad = [row for row in found.records() if row["status"] == "failed"]
    assert len(bad) == 9
    assert all(row["reason"] == "ZeroDivisionError: planted" for row in bad)
    assert found.counts["ok"] == 6


def test_a_point_that_takes_its_worker_down_does_not_end_the_others(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulator.studies import sweep

    plain = sweep.simulate_job

    def deadly(job: Any) -> Any:
        if (job.workload.global_batch_size, job.plan.zero_stage, job.plan.tensor_parallel) == (16, 1, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(job)

    monkeypatch.setattr(sweep, "simulate_job", deadly)
    with Journal(tmp_path / "deadly.jsonl") as journal:
        found = run_sweep(load_study(study), journal, local_crew(2))
    assert found.counts == {"ok": 11, "refused": 6, "failed": 1}
    (bad,) = (row for row in found.records() if row["status"] == "failed")
    assert "worker was lost" in bad["reason"]
    assert (bad["workload.global_batch_size"], bad["plan.zero_stage"], bad["plan.tensor_parallel"]) == (16, 1, 2)


KILLED = """
import os, signal, sys
from simulator.cli import main
from simulator.studies.journal import Journal

def append(self, results, kept=Journal.append):
    kept(self, results)
    os.killpg(0, signal.SIGKILL)

if "--resume" not in sys.argv:
    Journal.append = append
main()
"""
"""A sweep that is killed, with its processes, when its first results are kept; what resumes it is left alone."""


def sweeping(study: str, out: Path, *more: str) -> int:
    """The exit code of it."""
    command = [sys.executable, "-c", KILLED, "sweep", study, "-o", str(out), "--processes", "1", *more]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, start_new_session=True).returncode


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on(study: str, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    out, results = tmp_path / "killed.csv", tmp_path / "killed.results.jsonl"
    assert -signal.SIGKILL == sweeping(study, out)
    there = results.read_bytes()
    whole = there[: there.rindex(b"\n") + 1]
    assert 0 < whole.count(b"\n") < 18
    assert not out.exists()
    assert 0 == sweeping(study, out, "--resume")
    assert results.read_bytes().startswith(whole)
    keys = [json.loads(line)[0] for line in results.read_bytes().splitlines()]
    assert len(keys) == len(set(keys)) == 18
    with out.open() as file:
        table = list(csv.DictReader(file))
    assert [row["step_time_s"] for row in table] == [str(row.get("step_time_s", "")) for row in rows]


@pytest.fixture
def scheduler() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, scheduler_port=0
    ) as cluster:
        yield cluster


@pytest.mark.slow
def test_workers_of_a_scheduler_give_the_same(
    study: str, rows: list[dict[str, Any]], tmp_path: Path, scheduler: Any
) -> None:
    with Journal(tmp_path / "dask.jsonl") as journal:
        found = run_sweep(load_study(study), journal, cluster_crew(scheduler.scheduler_address))
    assert found.records() == rows


@pytest.mark.slow
def test_a_worker_of_a_scheduler_may_be_killed(
    study: str, rows: list[dict[str, Any]], tmp_path: Path, scheduler: Any
) -> None:
    killed: list[int] = []

    class Watched(Journal):
        def append(self, results: Any) -> list[int]:
            places = super().append(results)
            if not killed:
                killed.append(next(iter(scheduler.workers.values())).pid)
                os.kill(killed[0], signal.SIGKILL)
            return places

    with Watched(tmp_path / "dask.jsonl") as journal:
        found = run_sweep(load_study(study), journal, cluster_crew(scheduler.scheduler_address))
    assert killed
    assert found.records() == rows
    assert len((tmp_path / "dask.jsonl").read_bytes().splitlines()) == 18


class _Dask:
    """A scheduler and a worker as processes of their own."""

    def __init__(self, port: int, folder: Path) -> None:
        self.port, self.folder = port, folder
        self.worker = self._start(
            "worker", f"tcp://127.0.0.1:{port}", "--nthreads", "1", "--no-nanny", "--death-timeout", "900"
        )
        self.scheduler = self._scheduler()

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:], "--no-dashboard"]
        return subprocess.Popen(
            command, env=environment, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _scheduler(self) -> subprocess.Popen[bytes]:
        return self._start("scheduler", "--host", "127.0.0.1", "--port", str(self.port))

    def restart(self) -> None:
        """Kill the scheduler, start another at the same place, with a worker."""
        self.scheduler.kill()
        self.scheduler.wait()
        self.worker.kill()
        self.worker.wait()
        self.__init__(self.port, self.folder)  # type: ignore[misc]

    def stop(self) -> None:
        for one in (self.worker, self.scheduler):
            one.kill()
            one.wait()


@pytest.mark.slow
def test_a_scheduler_may_be_restarted(
    study: str, rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("simulator.studies.crew._AWAY", 900.0)  # it starts as slowly as the machine is busy
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dask = _Dask(port, tmp_path)
    try:
        restarts: list[float] = []

        class Watched(Journal):
            def append(self, results: Any) -> list[int]:
                places = super().append(results)
                if not restarts:
                    restarts.append(time.monotonic())
                    dask.restart()
                return places

        crew = Crew(cluster_crew(f"tcp://127.0.0.1:{port}", patience=900)._start, 1)
        with Watched(tmp_path / "restarted.jsonl") as journal:
            found = run_sweep(load_study(study), journal, crew)
        assert restarts
        assert found.records() == rows
        assert len((tmp_path / "restarted.jsonl").read_bytes().splitlines()) == 18
    finally:
        dask.stop()


def test_stopped_before_the_first_point_it_leaves_no_empty_table(
    dtsim: Dtsim, study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> Iterator[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Crew, "run", stopped)
    table, picture = tmp_path / "out.csv", tmp_path / "out.png"
    code, _, error = dtsim("sweep", study, "-o", str(table), "--plot", str(picture))
    assert (130, "") == (code, error)
    assert not table.exists()
    assert not picture.exists()


def test_two_sweeps_do_not_write_to_one_file(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    with Journal(file), pytest.raises(SpecError, match="another sweep"), Journal(file):
        pass
    file.write_text("something else\n")
    with pytest.raises(SpecError, match="no result of a sweep"), Journal(file):
        pass


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('model = "gpt3_1_3b"\n', "", "what is studied"),
        ('model = "gpt3_1_3b"\n', 'job = "gpt3_175b"\n', "names its own"),
        ("[8, 16]", "[8, 8]", "stands there twice"),
        ("[8, 16]", "[]", "global_batch_size"),
        ("tp = [1, 2, 3]", '"plan.tensor_parallel" = [1]\ntp = [2]', "given twice"),
        ("tp = [1, 2, 3]", '"workload.sequence_length" = [1024]', "given twice"),
    ],
)
def test_studies_that_cannot_be_are_refused(study: str, old: str, new: str, told: str) -> None:
    Path(study).write_text(TEXT.replace(old, new))
    with pytest.raises(SpecError, match=told):
        load_study(study)


def test_unknown_settings_offer_the_nearest(study: str) -> None:
    Path(study).write_text(TEXT.replace("plan.zero_stage", "plan.zero_stag"))
    with pytest.raises(UnknownNameError, match="zero_stage"):
        load_study(study)


def test_the_command_writes_a_table_and_a_picture(dtsim: Dtsim, study: str, tmp_path: Path) -> None:
    out, plot = tmp_path / "out.parquet", tmp_path / "out.png"
    words = ("sweep", study, "-o", str(out), "--processes", "1")
    code, text, _ = dtsim(*words, "--plot", str(plot), "--json")
    answer = json.loads(text)
    assert (code, answer["kind"], answer["points"], answer["ok"], answer["refused"]) == (0, "sweep", 18, 12, 6)
    assert answer["best"]["fits"]
    assert set(answer) == {"schema_version", "kind", "provenance", *ANSWERS["sweep"].keys}
    assert (out.exists(), plot.read_bytes()[:4]) == (True, b"\x89PNG")
    code, _, error = dtsim(*words)
    assert code == 2
    assert "--resume takes them over" in error
    code, text, _ = dtsim(*words, "--resume")
    assert code == 0
    first = "--set workload.sequence_length=1024 --set workload.global_batch_size=8 --set plan.zero_stage=0 "
    assert f"refused, the first: {first}--set plan.tensor_parallel=3: " in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--processes", "0"), "1 or more"),
        (("--processes", "999999"), "at most 1,024, got 999,999"),
        (("--scheduler", "tcp://127.0.0.1:9", "--processes", "2"), "Give one of them"),
        (("-o", "out.xlsx"), ".csv"),
        (("--plot", "out.xyz"), "file ending names its format"),
    ],
)
def test_bad_words_end_with_2_and_say_why(
    dtsim: Dtsim, study: str, words: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = dtsim("sweep", study, *words)
    assert (code, out) == (2, "")
    assert told in error


def _takes_an_hour(context: object, block: list[int]) -> None:
    time.sleep(3600)


def test_who_stops_a_sweep_does_not_wait_for_points_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simulator.studies.crew.wait", interrupted)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(local_crew(2).run(_takes_an_hour, None, [[0], [1], [2]], lambda point, why: None))
    assert time.monotonic() - begun < 1800


def test_the_quickest_point_of_a_job_that_tells_its_replicas_runs_as_it_is_printed(
    dtsim: Dtsim, tmp_path: Path
) -> None:
    study = tmp_path / "study.toml"
    study.write_text('job = "gpt3_13b_2xdgx_a100"\n[vary]\n"plan.tensor_parallel" = [2, 4]\n')
    _, out, _ = dtsim("sweep", str(study), "-o", str(tmp_path / "out.csv"), "--processes", "1")
    printed = next(line for line in out.splitlines() if "the quickest that fits" in line)
    settings = printed[printed.index("--set") :].split()
    assert dtsim("run", "gpt3_13b_2xdgx_a100", *settings)[0] == 0


def test_the_quickest_point_is_printed_as_a_shell_takes_it(dtsim: Dtsim, tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    price = "cluster.price_per_gpu_hour=3 $/h"
    study.write_text(f'job = "gpt3_13b_2xdgx_a100"\nset = ["{price}"]\n[vary]\n"plan.zero_stage" = [1]\n')
    _, out, _ = dtsim("sweep", str(study), "-o", str(tmp_path / "out.csv"), "--processes", "1")
    printed = next(line for line in out.splitlines() if "the quickest that fits" in line)
    assert shlex.split(printed[printed.index("--set") :]) == ["--set", price, "--set", "plan.zero_stage=1"]
