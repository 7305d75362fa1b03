"""A client, with an engine's interface, for other servers with OpenAI's API."""
