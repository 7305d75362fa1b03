"""The engine's API for programs, in OpenAI's wire format."""
