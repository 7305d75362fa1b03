"""What the clients of other servers offer."""

from roseplay.extensions import Command, Extension

EXTENSION = Extension(
    commands={
        "check": Command("roseplay.extras.servers.check.main", "show which features of OpenAI's API a server supports"),
        "vllm": Command("roseplay.extras.servers.vllm.command", "start a vLLM whose steps and limits the page shows"),
    },
    engines="roseplay.extras.servers.source:OTHER_SERVERS",
)
