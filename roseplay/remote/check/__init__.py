"""What a server for OpenAI's clients answers: ours, and those of others."""
