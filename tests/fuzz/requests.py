"""Questions to `dtsim serve` over HTTP: what the page sends, with a control, a header, a word or a byte changed."""

from __future__ import annotations

import atexit
import functools
import http.client
import json
import threading
import traceback
from random import Random
from typing import Any

from simulator.html.answering import AnsweringProcess
from simulator.html.controls import Controls
from simulator.html.schedule_lab import Question
from simulator.html.server import Server
from simulator.html.whatif import answer
from tests.fuzz.inputs import DATA, Input, Request, mutated, mutated_text
from tests.fuzz.values import garbage, text

__all__ = ["REFUSED", "requests", "sent"]

_SMALL = {"model": "gpt2_124m", "cluster": "dgx_a100", "gpus": 8, "tensor_parallel": 1, "pipeline_parallel": 2,
          "sequence_length": 1024, "microbatches": 4}  # fmt: skip
_LAB = {"schedule": "one_f_one_b", "ranks": 4, "microbatches": 8, "chunks_per_rank": 1, "forward": 1.0}
_JSON = (("Content-Type", "application/json"),)
_HEADERS = (
    ("Content-Type", "text/plain"), ("Host", "evil.example"), ("Origin", "https://evil.example"), ("Host", "[::"),
    ("X", "y" * 5000), ("Accept", "\u00e9"), ("Transfer-Encoding", "gzip"), ("Expect", "100-continue"),
)  # fmt: skip
REFUSED = (400, 403, 404, 405, 413, 415, 429)


def requests(draw: Random) -> Input:
    """A question of the page, with one or two values changed; now and then another address, header or body."""
    question = draw.choice(("step", "step", "step", "schedule", "read", "choices"))
    headers, method = _JSON, "GET" if question == "choices" else "POST"
    if question == "step":
        data: Any = mutated(draw, _SMALL, Controls)
    elif question == "schedule":
        data = mutated(draw, _LAB, Question)
    else:
        name = draw.choice(("deepspeed.json", "megatron.sh", "torchtitan.toml"))
        data = {"name": name, "text": mutated_text(draw, _file(name)), "controls": _SMALL}
    body = json.dumps(data)
    path = f"/api/{question}"
    kind = draw.random()
    if kind < 0.05:
        body = mutated_text(draw, body)
    elif kind < 0.08:
        body = json.dumps(garbage(draw))
    elif kind < 0.11:
        headers = (*_JSON, draw.choice(_HEADERS)) if draw.random() < 0.5 else (draw.choice(_HEADERS),)
    elif kind < 0.13:
        path, method = f"/{text(draw, 12).encode().hex()}", draw.choice(("GET", "POST", "DELETE", "PUT"))
    return Input({}, ("serve",), Request(method, path, headers, body))


@functools.cache
def _file(name: str) -> str:
    return (DATA / "imports" / name).read_text(encoding="utf-8")


class _Here(AnsweringProcess):
    """Answers in this process, where what an input takes is seen."""

    def ask(self, question: str, data: Any) -> tuple[int, dict[str, Any]]:
        try:
            return answer(question, data)
        except Exception:  # the server tells its client no more than that there was one
            return 500, {"error": traceback.format_exc()}

    def start(self) -> None:
        pass


@functools.cache
def _server() -> Server:
    """The page's server of this process, begun with its first request."""
    server, ready = Server(port=0, answering=_Here(), searching=_Here()), threading.Event()
    threading.Thread(target=server.run, args=(ready.set,), daemon=True).start()
    ready.wait()
    atexit.register(server.stop)
    return server


def sent(request: Request) -> tuple[int, str]:
    """Return the status and the text of the server's answer; 400 where it hangs up."""
    connection = http.client.HTTPConnection("127.0.0.1", _server().port)
    try:
        connection.putrequest(
            request.method, request.path, skip_host=any(name == "Host" for name, _ in request.headers)
        )
        body = request.body.encode("utf-8", "surrogateescape")
        for name, value in (*request.headers, ("Content-Length", str(len(body)))):
            connection.putheader(name, value.encode("latin-1", "replace"))
        connection.endheaders(body)
        reply = connection.getresponse()
        return reply.status, reply.read().decode("utf-8")
    except (ConnectionError, http.client.HTTPException):
        return 400, "{}"
    finally:
        connection.close()
