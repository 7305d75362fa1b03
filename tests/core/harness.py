"""A scheduler that a test drives by hand; every operation is checked against the oracle, as random ones are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from roseplay.core.request import Request
from roseplay.core.step import Step
from tests.core.checker import LAUNCHED, Checker

BLOCK_SIZE = 4


class Rig(Checker):
    """A checker that remembers its steps. When the test is over, what it left is served to its end (``conftest.py``).

    Args:
        ahead: whether each step is made while the one before it runs, where that is allowed.
    """

    made: ClassVar[list[Rig]] = []

    def __init__(self, *, ahead: bool = False, **settings: Any) -> None:
        super().__init__(**{"num_blocks": 200, "block_size": BLOCK_SIZE, "max_saved_logits": 1000, **settings})
        self.ahead = ahead
        self.steps: list[Step] = []
        self.made.append(self)

    @property
    def requests(self) -> list[Request]:
        """All requests so far, by id."""
        return [truth.request for truth in self.device.truths.values()]

    def add(self, prompt: Iterable[int], max_new_tokens: int = 4, **about: Any) -> Request:
        """Submit a request that fits; ``about`` is ``seed``, ``eos`` and its sampling parameters."""
        request = self.submit(prompt, max_new_tokens, **about)
        assert request is not None, "it was refused"
        return request

    def served(self, *prompts: Iterable[int], max_new_tokens: int = 4, **about: Any) -> list[Request]:
        """Serve requests that arrive together, and all others that are live, to their end."""
        requests = [self.add(prompt, max_new_tokens, **about) for prompt in prompts]
        self.run()
        return requests

    def step(self, outcome: str = LAUNCHED, entry: int | None = None) -> Step:  # type: ignore[override]
        """Make the next step and return it; with ``ahead``, it is in flight then."""
        if self.ahead:
            self.launch(outcome, entry)
        else:
            super().step(outcome, entry)
        return self.steps[-1]

    def run(self, most_steps: int = 20_000) -> int:
        """Step until no work is left; returns how many prompt tokens were computed."""
        before = len(self.steps)
        while self.scheduler.has_work or self.flying is not None:
            self.step()
            assert len(self.steps) < before + most_steps, f"not served: {self.scheduler.requests}"
        return sum(step.prompt_tokens for step in self.steps[before:])

    def _schedule(self) -> Step:
        step = super()._schedule()
        self.steps.append(step)
        return step


def sizes(step: Step) -> dict[int, int]:
    """The tokens that a step computes, by request."""
    return {entry.request.request_id: entry.num_tokens for entry in step.entries if entry.num_tokens}
