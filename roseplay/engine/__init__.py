"""Running the engine: the worker loop, its client, detokenising and telemetry."""
