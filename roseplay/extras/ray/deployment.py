"""The replicas as a deployment of Ray Serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roseplay.config import EngineConfig
from roseplay.extras.ray.deployment_settings import RaySettings
from roseplay.extras.ray.extra import serve
from roseplay.extras.ray.replica import Replica

ROUTER = "roseplay.extras.ray.router:PrefixRouter"
POLICY = "roseplay.extras.ray.autoscaling:policy"
STATS_PERIOD_S = 0.5  # between two reports of a replica to the routers
HEALTH_PERIOD_S, HEALTH_TIMEOUT_S = 2.0, 10.0
# Several batches, so that an engine never waits for the ingress. Further requests wait there, where a new replica can
# take them.
BATCHES_ONGOING = 4


def replicas(settings: RaySettings) -> Any:
    """Returns an application of Ray Serve: the replicas, without an ingress."""
    batch = settings.knobs.max_batch_size
    ongoing = max(64, BATCHES_ONGOING * batch)
    # The ingress refuses requests beyond ``max_waiting``; a replica takes all that are sent to it.
    config = replace(settings.config, kv_events=True, max_waiting=max(settings.config.max_waiting, ongoing))
    router = {"block_size": config.block_size, "slack": max(4, batch // 4), "round_robin": settings.round_robin}
    options = {
        "max_ongoing_requests": ongoing,
        "ray_actor_options": {
            "num_cpus": (config.threads or 1) * settings.processes,
            "num_gpus": settings.processes if needs_gpu(config) else 0,
        },
        "health_check_period_s": HEALTH_PERIOD_S,
        "health_check_timeout_s": HEALTH_TIMEOUT_S,
        "graceful_shutdown_timeout_s": settings.grace_s,
        "graceful_shutdown_wait_loop_s": 0.5,
        "max_constructor_retry_count": 2,
        "request_router_config": {
            "request_router_class": ROUTER,
            "request_router_kwargs": router,
            "request_routing_stats_period_s": STATS_PERIOD_S,
        },
        **_scale(settings, batch),
    }
    deployment = serve.deployment(Replica, name="Replica").options(**options)
    return deployment.bind(replace(settings, config=config))


def _scale(settings: RaySettings, batch: int) -> dict[str, Any]:
    if settings.most_replicas is None:
        return {"num_replicas": settings.replicas}
    config = {
        "min_replicas": settings.replicas,
        "max_replicas": settings.most_replicas,
        "target_ongoing_requests": batch,  # a full batch each; further ones would wait
        "look_back_period_s": 11.0,  # Ray wants more than the 10 s between two reports
        "upscale_delay_s": 5.0,
        "downscale_delay_s": 60.0,
        "policy": {"policy_function": POLICY},
    }
    return {"autoscaling_config": config}


def needs_gpu(config: EngineConfig) -> bool:
    """Returns whether an engine with these settings would use a GPU if it ran on this machine."""
    if config.run_as is not None:
        return False
    if config.device == "auto":
        import torch

        return torch.cuda.is_available()
    return config.device.startswith("cuda")
