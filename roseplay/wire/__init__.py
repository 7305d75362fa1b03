"""Exchanges telemetry with other engines: KV events and forward pass metrics as in vLLM, SGLang and Dynamo."""
