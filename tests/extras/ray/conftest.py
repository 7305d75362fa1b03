"""The API's engine, as in the tests of the server."""

from tests.serve.conftest import engine as engine
from tests.serve.conftest import in_slow_motion as in_slow_motion
