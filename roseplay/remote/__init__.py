"""An engine's client for other people's servers: whatever speaks OpenAI's API."""
