"""Synchronous parameter servers: everybody pushes gradients to who keeps the sum, and pulls the sum back.

Colocated: every node keeps an n-th of the message; its cards carry as much as a ring's.  Dedicated: k machines without
GPUs keep a k-th each; a server of n machines carries n / k messages, so that too few servers are a bottleneck.  Either way the GPUs of
a node add up directly first, so that a node pushes each gradient once.
"""

from __future__ import annotations

from simulator.collectives.byteps import ServedCollective

__all__ = ["DedicatedParameterServer", "ParameterServer"]


class ParameterServer(ServedCollective):
    """all_reduce by push and pull; unless told how many machines serve, every node serves an n-th of the message."""

    name = "parameter_server"
    aliases: tuple[str, ...] = ("ps", "parameter_server_colocated")
    source = "Li et al., OSDI 2014 (the idea; from memory, unverified); counts derived here"

    def split(self, nodes: int) -> tuple[int, float, float]:
        """Return (servers, share of each server, share of each node)."""
        servers = self.servers or 0
        return (servers, 1 / servers, 0.0) if servers else (0, 0.0, 1 / nodes)


class DedicatedParameterServer(ParameterServer):
    """all_reduce by push to and pull from machines of their own, as many as there are nodes unless told otherwise."""

    name = "parameter_server_dedicated"
    aliases = ("ps_dedicated",)
    fewest = 1

    def split(self, nodes: int) -> tuple[int, float, float]:
        """Return (servers, share of each server, 0 for the nodes)."""
        servers = self.servers or nodes
        return servers, 1 / servers, 0.0
