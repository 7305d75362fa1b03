"""Keeps a replica's server on the loopback address."""

from __future__ import annotations


def keep_on_loopback() -> None:
    """Keep a replica's server on the loopback address. Call this before Ray opens its server for other deployments.

    By default that server listens on all addresses, without a key, and unpickles what it receives.

    Raises:
        RuntimeError: this version of Ray opens it in another way.
    """
    from ray.serve._private import replica

    bind = getattr(replica, "add_port_to_grpc_server", None)
    if bind is None:
        raise RuntimeError("this version of Ray cannot be kept on the loopback address: use ray 2.60")

    def bind_loopback(server: object, address: str) -> int:
        port: int = bind(server, "127.0.0.1:" + address.rpartition(":")[2])
        return port

    replica.add_port_to_grpc_server = bind_loopback
