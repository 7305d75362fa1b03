"""Chooses the number of replicas, by unfinished requests and by KV blocks in use."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

KV_USAGE = "kv_usage"  # what replicas report to the autoscaler, 0 to 1
TARGET_KV_USAGE = 0.8


def desired_replicas(num_requests: float, target_requests: float, kv_usages: list[float]) -> int:
    """Returns how many replicas would each have at most ``target_requests`` unfinished requests and at most four fifths
    of its blocks in use."""
    by_requests = num_requests / target_requests
    by_blocks = sum(kv_usages) / TARGET_KV_USAGE
    return max(1, math.ceil(max(by_requests, by_blocks) - 1e-6))


def policy(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """The policy function for Ray Serve, which applies its own delays to the result."""
    target = context.config.target_ongoing_requests
    usages = list((context.aggregated_metrics or {}).get(KV_USAGE, {}).values())
    wanted = desired_replicas(context.total_num_requests, target, usages)
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return min(max(wanted, least), most), {}
