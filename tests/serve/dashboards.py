"""What the dashboards made for vLLM query from Prometheus, as of autumn 2026.

From ``examples/observability`` of vLLM's repository: ``prometheus_grafana/grafana.json`` (the one that people import)
and the seven in ``dashboards/grafana``, 306 queries in all. Labels that Prometheus adds itself (``job``,
``instance``) and ``up`` are left out.
"""

from __future__ import annotations

# The metrics by the labels by which queries select or group.
_BY_LABELS = {
    "handler": "http_request_duration_seconds_count http_request_duration_seconds_sum",
    "": """
        process_cpu_seconds_total process_max_fds process_open_fds process_resident_memory_bytes
        process_start_time_seconds vllm:lora_requests_info
    """,
    "engine": "vllm:cache_config_info",
    "model_name engine le": """
        vllm:e2e_request_latency_seconds_bucket vllm:inter_token_latency_seconds_bucket
        vllm:kv_block_idle_before_evict_seconds_bucket vllm:kv_block_lifetime_seconds_bucket
        vllm:kv_block_reuse_gap_seconds_bucket vllm:kv_offload_lookup_async_delay_seconds_bucket
        vllm:kv_offload_lookup_sync_delay_seconds_bucket vllm:nixl_bytes_transferred_bucket
        vllm:nixl_num_descriptors_bucket vllm:nixl_post_time_seconds_bucket vllm:nixl_xfer_time_seconds_bucket
        vllm:time_to_first_token_seconds_bucket
    """,
    "model_name": """
        vllm:e2e_request_latency_seconds_count vllm:e2e_request_latency_seconds_sum
        vllm:request_decode_time_seconds_count vllm:request_decode_time_seconds_sum vllm:request_generation_tokens_count
        vllm:request_generation_tokens_sum vllm:request_max_num_generation_tokens_sum
        vllm:request_prefill_time_seconds_count vllm:request_prefill_time_seconds_sum
        vllm:request_time_per_output_token_seconds_count vllm:request_time_per_output_token_seconds_sum
        vllm:time_to_first_token_seconds_count vllm:time_to_first_token_seconds_sum
    """,
    "model_name engine": """
        vllm:estimated_flops_per_gpu_total vllm:estimated_read_bytes_per_gpu_total
        vllm:estimated_write_bytes_per_gpu_total vllm:external_prefix_cache_hits_total
        vllm:external_prefix_cache_queries_total vllm:generation_tokens_total vllm:inter_token_latency_seconds_count
        vllm:inter_token_latency_seconds_sum vllm:iteration_tokens_total_count vllm:iteration_tokens_total_sum
        vllm:kv_block_idle_before_evict_seconds_count vllm:kv_block_idle_before_evict_seconds_sum
        vllm:kv_block_lifetime_seconds_count vllm:kv_block_lifetime_seconds_sum vllm:kv_block_reuse_gap_seconds_count
        vllm:kv_block_reuse_gap_seconds_sum vllm:kv_cache_usage_perc vllm:kv_offload_allocation_failure_total
        vllm:kv_offload_cpu_cache_read_usage_perc vllm:kv_offload_cpu_cache_usage_perc
        vllm:kv_offload_cpu_cache_write_usage_perc vllm:kv_offload_load_bytes_total vllm:kv_offload_load_size_count
        vllm:kv_offload_load_size_sum vllm:kv_offload_load_time_total vllm:kv_offload_store_bytes_total
        vllm:kv_offload_store_size_count vllm:kv_offload_store_size_sum vllm:kv_offload_store_time_total
        vllm:kv_offload_stores_skipped_total vllm:mm_cache_hits_total vllm:mm_cache_queries_total
        vllm:nixl_bytes_transferred_count vllm:nixl_bytes_transferred_sum vllm:nixl_num_descriptors_count
        vllm:nixl_num_descriptors_sum vllm:nixl_num_failed_notifications_total vllm:nixl_num_failed_transfers_total
        vllm:nixl_num_kv_expired_reqs_total vllm:nixl_num_notifications_after_expiry_total
        vllm:nixl_post_time_seconds_count vllm:nixl_post_time_seconds_sum vllm:nixl_xfer_time_seconds_count
        vllm:nixl_xfer_time_seconds_sum vllm:num_preemptions_total vllm:num_requests_running vllm:num_requests_waiting
        vllm:prefix_cache_hits_total vllm:prefix_cache_queries_total vllm:prompt_tokens_cached_total
        vllm:prompt_tokens_total vllm:request_prefill_kv_computed_tokens_count
        vllm:request_prefill_kv_computed_tokens_sum vllm:request_prompt_tokens_count vllm:request_prompt_tokens_sum
        vllm:request_queue_time_seconds_count vllm:request_queue_time_seconds_sum
        vllm:simple_kv_offload_load_blocks_total vllm:simple_kv_offload_pending_store_blocks
        vllm:simple_kv_offload_used_blocks vllm:spec_decode_num_accepted_tokens_total
        vllm:spec_decode_num_draft_tokens_total vllm:spec_decode_num_drafts_total
    """,
    "model_name le": """
        vllm:iteration_tokens_total_bucket vllm:request_generation_tokens_bucket vllm:request_prompt_tokens_bucket
        vllm:request_queue_time_seconds_bucket vllm:request_time_per_output_token_seconds_bucket
    """,
    "model_name engine stage": "vllm:num_requests_kv_fetch_by_stage",
    "model_name engine source": "vllm:prompt_tokens_cached_by_source_total",
    "le operation": """
        vllm:rl_weight_update_operation_duration_seconds_bucket vllm:sleep_mode_operation_duration_seconds_bucket
    """,
    "operation": """
        vllm:rl_weight_update_operation_duration_seconds_count vllm:rl_weight_update_operation_duration_seconds_sum
        vllm:sleep_mode_operation_duration_seconds_count vllm:sleep_mode_operation_duration_seconds_sum
    """,
    "model_name engine outcome": "vllm:simple_kv_offload_save_outcomes_total",
    "model_name engine position": "vllm:spec_decode_num_accepted_tokens_per_pos_total",
}
# For each metric: these labels, and the values that queries name.
QUERIED: dict[str, tuple[set[str], dict[str, list[str]]]] = {
    **{name: (set(labels.split()), {}) for labels, names in _BY_LABELS.items() for name in names.split()},
    "http_requests_total": ({"handler", "status"}, {"status": ["5xx"]}),
    "vllm:engine_sleep_state": ({"model_name", "engine", "sleep_state"}, {"sleep_state": ["awake", "discard_all"]}),
    "vllm:num_requests_waiting_by_reason": ({"model_name", "engine", "reason"}, {"reason": ["capacity", "deferred"]}),
    "vllm:prompt_tokens_by_source_total": (
        {"model_name", "engine", "source"},
        {"source": ["external_kv_transfer", "local_cache_hit", "local_compute"]},
    ),
    "vllm:request_success_total": ({"model_name", "engine", "finished_reason"}, {"finished_reason": ["error"]}),
}

# The options for the overview's two limits, which select exactly these histogram bounds.
LIMITS = {
    "vllm:time_to_first_token_seconds_bucket": ["0.1", "0.25", "0.5", "0.75", "1.0", "2.5", "5.0", "10.0"],
    "vllm:request_time_per_output_token_seconds_bucket": "0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.5".split(),
}

# What does not apply to this engine: a prefix of metric names -> the reason.
DOES_NOT_APPLY = {
    "vllm:estimated_": "floating-point operations and bytes are not estimated at run time; `roseplay bench` measures them",
    "vllm:external_prefix_cache_": "there is no cache outside the engine",
    "vllm:kv_block_": "lifetimes of blocks are on the page's block map",
    "vllm:kv_offload_": "KV blocks are not offloaded",
    "vllm:lora_requests_info": "there are no LoRA adapters",
    "vllm:mm_cache_": "prompts are text",
    "vllm:nixl_": "KV blocks are not sent to other engines",
    "vllm:num_requests_kv_fetch_by_stage": "KV blocks are not fetched from other engines",
    "vllm:rl_weight_update_": "weights do not change while the engine runs",
    "vllm:simple_kv_offload_": "KV blocks are not offloaded",
    "vllm:sleep_mode_": "the engine does not sleep",
}
