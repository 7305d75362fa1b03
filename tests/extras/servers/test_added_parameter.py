"""A sampling parameter is sent to other servers without a further word."""

import subprocess
import sys

SCRIPT = """
import tests.added_settings
from roseplay.config import SamplingParams
from roseplay.extras.servers.dialects import DIALECTS
from roseplay.extras.servers.fields import request_of

print(request_of([1], SamplingParams(flair=1.5), "m", DIALECTS["vllm"])[1]["flair"])
"""


def test_a_parameter_that_is_declared_is_sent() -> None:
    sent = subprocess.check_output([sys.executable, "-c", SCRIPT], text=True, timeout=120)
    assert sent == "1.5\n"
