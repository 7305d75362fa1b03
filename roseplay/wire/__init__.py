"""Telemetry between engines: KV events and forward pass metrics as vLLM, SGLang and Dynamo know them."""
