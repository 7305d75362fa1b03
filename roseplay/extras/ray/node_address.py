"""Keeps the servers of a deployment on the address of their machine's Ray."""

from __future__ import annotations

from ipaddress import ip_address

from roseplay.extras.ray.extra import ray


def listen_on_node_address() -> None:
    """Call this in a deployment's constructor, before Ray opens the server that takes calls of other deployments.

    By default that server listens on all addresses, without a key, and unpickles what it receives. The address of a
    node is the one with which it joined the cluster: ``--node-ip-address`` of ``ray start``.

    Raises:
        RuntimeError: the address is the loopback address, and this version of Ray opens the server in another way.
    """
    from ray.serve._private import replica

    node = ip_address(ray.util.get_node_ip_address())
    if (bind := getattr(replica, "add_port_to_grpc_server", None)) is None:
        if node.is_loopback:
            raise RuntimeError("this version of Ray cannot be kept on the loopback address: use ray 2.60")
        return

    def bind_node(server: object, address: str) -> int:
        port: int = bind(server, f"{f'[{node}]' if node.version == 6 else node}:{address.rpartition(':')[2]}")
        return port

    replica.add_port_to_grpc_server = bind_node
