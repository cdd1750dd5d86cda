"""dtsim serve over HTTP: right questions are answered, hostile ones are refused with one sentence, and none stops the rest."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import SpecError
from simulator.html.answering import AnsweringProcess
from simulator.html.server import Server
from simulator.html.whatif import answer
from tests.command import Dtsim

SMALL = {"model": "gpt2_124m", "cluster": "dgx_a100", "gpus": 8, "tensor_parallel": 1, "pipeline_parallel": 2}
SMALL |= {"sequence_length": 1024, "microbatches": 4}
PATIENCE = 600.0
"""Seconds after which something is taken to hang: a machine may be slow, and busy with other tests."""


class Here(AnsweringProcess):
    """Answers in this process: quick to start."""

    def ask(self, question: str, data: Any) -> tuple[int, dict[str, Any]]:
        return answer(question, data)

    def start(self) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    yield from running(Server(port=0, answering=Here(), searching=Here()))


def running(server: Server) -> Iterator[Server]:
    ready = threading.Event()
    thread = threading.Thread(target=server.run, args=(ready.set,))
    thread.start()
    assert ready.wait(PATIENCE)
    yield server
    server.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def call(
    server: Server, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, body, told)
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()
    finally:
        connection.close()


def ask(server: Server, question: str, data: Any) -> tuple[int, dict[str, Any]]:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    status, _, text = call(server, "POST", f"/api/{question}", body, Content_Type="application/json")
    return status, json.loads(text)


def test_the_page_and_its_lists(server: Server) -> None:
    status, headers, text = call(server, "GET", "/")
    assert 200 == status
    assert b"<!doctype html>" == text[:15]
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert "nosniff" == headers["X-Content-Type-Options"]
    status, _, text = call(server, "GET", "/api/choices")
    choices = json.loads(text)
    assert {"dgx_h100", "selene"} <= set(choices["clusters"])
    assert {"one_f_one_b", "zbv"} <= {s["name"] for s in choices["schedules"]}


def test_one_setting_is_what_its_command_line_says(server: Server, dtsim: Dtsim) -> None:
    import shlex

    status, found = ask(server, "step", SMALL | {"more": ["plan.overlap_gradients = true"]})
    assert 200 == status
    words = shlex.split(found["command"])
    assert "plan.overlap_gradients=true" in words
    code, out, _ = dtsim(*words[1:], "--json")
    assert 0 == code
    told = json.loads(out)
    assert told["step_time_s"]["value"] == found["answer"]["step"]
    assert told["bubble_fraction"] == found["answer"]["bubble"]


def test_toml_copied_from_the_page_can_be_dropped_on_it(server: Server) -> None:
    _, first = ask(server, "step", SMALL | {"more": ["cluster.gpu_spread = 0.02"], "schedule": "gpipe"})
    status, dropped = ask(server, "read", {"name": "job.toml", "text": first["toml"]})
    assert 200 == status
    _, second = ask(server, "step", dropped["controls"])
    assert first["answer"] == second["answer"]


def test_a_hugging_face_config_can_be_dropped(server: Server) -> None:
    config = {
        "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
        "intermediate_size": 2816, "vocab_size": 32000, "max_position_embeddings": 2048, "_name_or_path": "tiny",
    }  # fmt: skip
    status, found = ask(server, "read", {"name": "config.json", "text": json.dumps(config)})
    assert 200 == status, found
    controls = found["controls"] | {"gpus": 8, "tensor_parallel": 1, "pipeline_parallel": 1}
    status, told = ask(server, "step", controls)
    assert 200 == status, told
    assert "dtsim run job.toml" == told["command"]
    assert "[model]" in told["toml"]


IMPORTS = Path(__file__).parents[1] / "data" / "imports"


def drop(server: Server, name: str, **more: Any) -> tuple[int, Any]:
    return ask(server, "read", {"name": name, "text": (IMPORTS / name).read_text(), **more})


@pytest.mark.parametrize(
    ("name", "page", "wanted"),
    [
        (
            "megatron.sh",
            {},
            {"gpus": 128, "tensor_parallel": 4, "pipeline_parallel": 2, "microbatches": 8, "zero_stage": 1},
        ),
        (
            "deepspeed.json",
            {"model": "llama3_8b"},
            {"gpus": 32, "tensor_parallel": 1, "zero_stage": 2, "model": "llama3_8b"},
        ),
        ("torchtitan.toml", {}, {"gpus": 512, "tensor_parallel": 8, "pipeline_parallel": 4, "zero_stage": 3}),
        ("accelerate.yaml", {"gpus": 8}, {"gpus": 16, "tensor_parallel": 1, "framework": "hugging_face_fsdp"}),
        ("simai.txt", {"model": "mixtral_8x7b"}, {"gpus": 32, "expert_parallel": 2, "model": "mixtral_8x7b"}),
    ],
)
def test_a_dropped_plan_counts_whole_and_the_page_says_the_rest(
    server: Server, name: str, page: Any, wanted: Any
) -> None:
    status, found = drop(
        server, name, controls=SMALL | {"tensor_parallel": 8, "gpus": 64, "cluster": "dgx_h100"} | page
    )
    assert 200 == status, found
    assert wanted.items() <= found["controls"].items()
    status, told = ask(server, "step", found["controls"])
    assert (200, True) == (status, told["answer"]["step"] > 0)


def test_a_config_without_a_plan_keeps_the_pages_or_has_one_that_can_be(server: Server) -> None:
    config = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 16,
              "intermediate_size": 5632, "vocab_size": 32000, "max_position_embeddings": 2048}  # fmt: skip
    file = {"name": "six.json", "text": json.dumps(config)}
    for pipeline in (2, 8):  # six layers make no eight stages
        page = SMALL | {"gpus": 8, "tensor_parallel": 1, "pipeline_parallel": pipeline, "chunks_per_rank": 1}
        status, found = ask(server, "read", file | {"controls": page})
        assert 200 == status, found
        assert (2 == pipeline) == (pipeline == found["controls"]["pipeline_parallel"])
        assert ask(server, "step", found["controls"])[1]["answer"]["step"] > 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("order.csv", "dtsim schedule"),
        ("topo.xml", "by name"),
        ("kineto.json", "--measured"),
        ("graph.json", "--measured"),
    ],
)
def test_what_a_page_cannot_show_says_who_can(server: Server, name: str, said: str) -> None:
    status, found = drop(server, name)
    assert (200, True) == (status, said in found["error"]), found


def test_money_follows_price_and_tokens(server: Server) -> None:
    _, found = ask(server, "step", SMALL | {"price": 2.0, "tokens": 10**9})
    run = found["money"]["run"]
    assert run["price_usd"] == pytest.approx(2.0 * run["gpu_hours"])
    assert found["money"]["gpu_hours_per_token"] * 10**9 == pytest.approx(run["gpu_hours"], rel=0.01)


def test_a_schedule_alone_and_the_same_order_given_back(server: Server) -> None:
    _, first = ask(server, "schedule", {"schedule": "1f1b", "ranks": 4, "microbatches": 8})
    assert 3 / 11 == first["bubble"]
    status, again = ask(server, "schedule", {"orders": first["orders"]})
    assert (200, first["makespan"]) == (status, again["makespan"])
    moved = [list(cells) for cells in first["orders"]]
    moved[3][0:2] = moved[3][1::-1]
    status, refused = ask(server, "schedule", {"orders": moved})
    assert 200 == status
    assert "backward" in refused["error"]


HOSTILE = [
    ("step", b""),
    ("step", b"{"),
    ("step", b"\xff\xfe"),
    ("step", b"[" * 100_000),
    ("step", b'{"gpus": NaN}'),
    ("step", b'{"gpus": ' + b"9" * 10_000 + b"}"),
    ("step", [1, 2]),
    ("step", "text"),
    ("step", None),
    ("step", {"nonsense": 1}),
    ("read", {"text": "", "controls": {"nonsense": 1}}),
    ("step", {"gpus": "many"}),
    ("step", {"gpus": -8}),
    ("step", {"gpus": 0}),
    ("step", {"microbatches": 10**7}),
    ("step", {"microbatches": 10**30}),
    ("step", {"sequence_length": 10**7, "microbatches": 40_000}),
    ("step", {"model": "../../../etc/passwd"}),
    ("step", {"model": "/etc/passwd"}),
    ("step", {"cluster": "\\\\host\\share"}),
    ("step", {"schedule": "mine.csv"}),
    ("step", {"schedule": "mine.py"}),
    ("step", {"more": ["workload.model = '/etc/passwd'"]}),
    ("step", {"more": ["cluster.name = '../x.toml'"]}),
    ("step", {"more": ["plan.recompute_policy = '/etc/shadow'"]}),
    ("step", {"more": ["x" * 10_000]}),
    ("step", {"more": ["plan.zero_stage = 1"] * 1000}),
    ("step", {"table": {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": 1}}}}}}}}}}),
    ("read", {"text": 5}),
    ("schedule", {"ranks": 10**6, "microbatches": 10**7}),
    ("schedule", {"schedule": "../../etc/passwd"}),
    ("schedule", {"forward": 1e308}),
]


@pytest.mark.parametrize(("question", "data"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_question_gets_a_4xx_and_one_sentence(
    server: Server, question: str, data: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    status, found = ask(server, question, data)
    assert 400 <= status < 500
    assert ["error"] == list(found)
    assert found["error"]
    assert "root:" not in found["error"]
    assert "Traceback" not in "".join(capfd.readouterr()) + found["error"]


CANNOT_BE = [
    ("step", {"more": ["model.layers = 100000000"]}),
    ("step", {"framework": "nobody"}),
    ("step", {"more": ["no equals sign"]}),
    ("step", {"more": ["a.b.c.d.e.f = 1"]}),
    ("step", {"table": {"layers": 4}}),
    ("read", {"name": "../../etc/passwd", "text": "root:x:0:0"}),
    ("read", {"name": "job.toml", "text": "[workload]\nmodel = '/etc/passwd'\n[cluster]\nname = 'selene'"}),
    ("read", {"name": "config.json", "text": "{" * 10_000}),
    ("read", {"name": "config.json", "text": '{"model_type": "llama"}'}),
    ("read", {"name": "job.toml", "text": "a = [" + "[" * 5_000}),
    ("read", {"name": "job.toml", "text": "\x00"}),
    ("step", {"gpus": 7}),
    ("step", {"pipeline_parallel": 2, "schedule": "chimera_8"}),
    ("step", {"context_parallel": 64, "gpus": 2048, "sequence_length": 1000}),
    ("schedule", {"schedule": "pipedream"}),
    ("schedule", {"schedule": "zbv", "chunks_per_rank": 3}),
    ("schedule", {"orders": [["0F0", "0B0"], ["1B0", "1F0"]]}),
    ("schedule", {"orders": [["0F99999999999"]]}),
    ("schedule", {"orders": [["<script>"]]}),
    ("schedule", {"orders": [[]]}),
    ("schedule", {"orders": [["0F0\n1F0"]]}),
]


@pytest.mark.parametrize(("question", "data"), CANNOT_BE, ids=range(len(CANNOT_BE)))
def test_what_cannot_be_is_an_answer_with_the_reason(server: Server, question: str, data: Any) -> None:
    status, found = ask(server, question, data)
    assert 200 == status
    assert ["error"] == list(found)
    assert 20 < len(found["error"])
    assert "root:" not in found["error"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/../../etc/passwd", {}, 404),
        ("GET", "/..%2f..%2fetc%2fpasswd", {}, 404),
        ("GET", "/assets/draw.js", {}, 404),
        ("GET", "/api/step", {}, 405),
        ("DELETE", "/", {}, 405),
        ("POST", "/", {}, 405),
        ("GET", "/", {"Host": "evil.example"}, 403),
        ("GET", "/api/choices", {"Host": "evil.example:80"}, 403),
        ("GET", "/", {"Host": "[::"}, 403),
        ("POST", "/api/step", {"Origin": "https://evil.example", "Content_Type": "application/json"}, 403),
        ("POST", "/api/step", {"Content_Type": "text/plain"}, 415),
        ("GET", "/", {"X": "y" * 100_000}, 400),
    ],
)
def test_other_addresses_other_sites_other_methods(
    server: Server, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    try:
        found, _, text = call(server, method, path, b"{}" if method == "POST" else None, **headers)
    except (ConnectionError, http.client.BadStatusLine):
        found, text = 400, b""  # headers beyond all bounds: the line is cut
    assert status == found
    assert b"Traceback" not in text


def test_a_body_larger_than_any_job_is_refused_before_it_is_read(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as line:
        line.sendall(
            b"POST /api/step HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10000000000\r\n\r\n"
        )
        assert line.recv(100).startswith(b"HTTP/1.1 4")


def test_slow_and_silent_clients_do_not_hold_up_others(server: Server) -> None:
    half = b"POST /api/step HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n"
    lines = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(60)]
    try:
        for number, line in enumerate(lines):
            line.sendall((b"", half, half + b"\r\n{")[number % 3])
        assert 200 == ask(server, "step", SMALL)[0]
    finally:
        for line in lines:
            line.close()


def test_too_many_questions_at_once_are_told_to_wait() -> None:
    hold = threading.Event()

    class Held(Here):
        def ask(self, question: str, data: Any) -> tuple[int, dict[str, Any]]:
            hold.wait(PATIENCE)
            return 200, {}

    for server in running(Server(port=0, answering=Held())):
        found: list[int] = []

        def one(server: Server = server, found: list[int] = found) -> None:
            found.append(ask(server, "step", {})[0])

        threads = [threading.Thread(target=one) for _ in range(40)]
        for thread in threads:
            thread.start()
        while 24 > len(found):
            time.sleep(0.01)
        hold.set()
        for thread in threads:
            thread.join()
        assert {200: 16, 429: 24} == {status: found.count(status) for status in set(found)}


def test_a_port_in_use_is_said(server: Server, dtsim: Dtsim) -> None:
    code, _, said = dtsim("serve", "--port", str(server.port))
    assert 2 == code
    assert "cannot listen" in said
    assert "--port 0" in said
    with pytest.raises(SpecError, match=r"cannot listen.* Way out: --host 127\.0\.0\.1, or an address of this machine"):
        Server("no such host.invalid", 0)
    with pytest.raises(SpecError, match=r"cannot listen.* Way out: --host"):
        Server("192.0.2.1", 0)  # of a documentation's network: nobody's


def test_without_tornado_the_way_out_is_told(dtsim: Dtsim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, said = dtsim("serve")
    assert 2 == code
    assert "pip install 'dtsim[page]'" in said


@pytest.mark.slow
def test_the_best_plan_is_a_setting_that_the_page_can_show(server: Server) -> None:
    status, found = ask(server, "best", SMALL)
    assert 200 == status, found
    _, before = ask(server, "step", SMALL)
    _, after = ask(server, "step", found["controls"])
    assert after["answer"]["tokens"] >= before["answer"]["tokens"]
    assert after["facts"]["batch"] == before["facts"]["batch"]
    assert (SMALL["model"], SMALL["gpus"]) == (found["controls"]["model"], found["controls"]["gpus"])
    assert "plans:" in found["found"]
    assert " too large" in found["found"], "not the name of a count"


def test_where_no_plan_fits_a_search_says_so(server: Server) -> None:
    status, found = ask(
        server, "best", SMALL | {"model": "gpt3_175b", "gpus": 1, "pipeline_parallel": 1, "microbatches": 1}
    )
    assert (200, True) == (status, "no plan was found that fits" in found["error"])


@pytest.mark.parametrize("body", [b"[]", b'{"model": "../../etc/passwd"}', b'{"gpus": 0}', b"{"])
def test_hostile_searches_are_refused(server: Server, body: bytes) -> None:
    status, answer_ = ask(server, "best", body)
    assert (400, True) == (status, bool(answer_["error"]))


def test_a_search_holds_up_nothing_and_a_second_one_waits_for_none() -> None:
    class Slow(Here):
        def ask(self, question: str, data: Any) -> tuple[int, dict[str, Any]]:
            begun.set()
            assert go_on.wait(PATIENCE)
            return 200, {"found": "it"}

    begun, go_on, first = threading.Event(), threading.Event(), []
    with contextlib.contextmanager(running)(Server(port=0, answering=Here(), searching=Slow())) as server:
        thread = threading.Thread(target=lambda: first.append(ask(server, "best", SMALL)))
        thread.start()
        assert begun.wait(PATIENCE)
        assert 200 == ask(server, "step", SMALL)[0]
        assert 429 == ask(server, "best", SMALL)[0]
        go_on.set()
        thread.join(PATIENCE)
    assert [(200, {"found": "it"})] == first
