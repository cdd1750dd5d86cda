"""dtsim serve: the what-if page on this machine."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from simulator.cli.output import note, tell_compiling
from simulator.errors import SpecError

__all__ = ["command"]


def command(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8765,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; other machines reach the page only if you name one.")
    ] = "127.0.0.1",
) -> None:
    """Serve a page on which model, cluster, plan and schedule are changed by hand; time, memory and money follow."""
    if importlib.util.find_spec("tornado") is None:
        raise SpecError("dtsim serve needs Tornado, which is not installed. Way out: pip install 'dtsim[page]'")
    from simulator.html.server import LOCAL, Server

    server = Server(host, port)
    tell_compiling()
    note(f"dtsim serves {server.address} (Ctrl-C ends it)")
    if host not in LOCAL:
        note("everyone who reaches this address may ask; there is no password")
    server.run()
