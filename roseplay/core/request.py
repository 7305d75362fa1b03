"""One request as the scheduler sees it: its tokens, how many are computed, and the blocks that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from roseplay.config import SamplingParams

if TYPE_CHECKING:
    from roseplay.core.cache_entries import KeptState, Node
    from roseplay.core.cache_miss import Miss
    from roseplay.core.prompt_lookup import PromptLookup


# In ``token_ids``: a token that a step in flight will draw (see ``core/ahead.py``).
PLACEHOLDER = -(1 << 31)


class FinishReason(StrEnum):
    """Why a request ended; the values are shown by the API and the page."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RequestStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """A prompt, its answer so far, and the KV blocks that hold their keys and values.

    There is no prefill or decode phase: ``token_ids`` are to be computed, and ``num_computed_tokens`` catches up.

    Attributes:
        request_id: chosen by the client, unique among the live requests.
        arrival, turn: its place in the order of arrival, and of first admissions (-1 before); kept through preemption.
        token_ids: prompt, then answer; the last one may be a ``PLACEHOLDER`` while a step is in flight.
        num_prompt_tokens: length of the prompt in ``token_ids``.
        num_computed_tokens: number of tokens whose keys and values are in ``block_table``.
        prefill_end: number of tokens when it was last admitted; tokens before that count as prompt tokens.
        block_table: ids of its KV blocks; block i holds tokens ``[i * block_size, (i + 1) * block_size)``.
        state_slot: where its recurrent states are stored, 0 while it has no slot.
        answer_state: the kept state after the last full block of its own answer; None if there is none.
        branch: number of leading tokens found in blocks at whose end no recurrent state was kept; 0 for none.
        chain: the prefix cache's node for its first ``num_chained_blocks`` full blocks.
        last_step: the last step that computed one of its tokens, -1 before the first.
        num_cached_tokens: prompt tokens served by the prefix cache at its first admission.
        num_shared_tokens: prompt tokens that another request computed in the same step.
        num_prompt_logprobs: number of prompt tokens, without the first, whose log-probabilities are known.
        miss: why the first token that it computed itself was not cached; None until it computes one.
        num_lost_tokens: the most tokens that it had computed when it was preempted.
        lookup: guesses its next tokens; None until they are first to be guessed.
        matcher: follows its answer in a grammar (``model/grammar.py``); None for free text.
        bad_words: sequences of tokens that its answer must not contain.
        seed: seed of its sampling noise: ``sampling.seed``, or one drawn by the engine.
    """

    __slots__ = (
        "request_id", "arrival", "turn", "token_ids", "num_prompt_tokens", "sampling", "seed", "eos_token_ids",
        "status", "num_computed_tokens", "prefill_end", "block_table", "state_slot", "answer_state", "branch",
        "chain", "num_chained_blocks", "last_step",
        "num_cached_tokens", "num_shared_tokens", "num_prompt_logprobs", "miss", "lookup", "num_preemptions",
        "num_lost_tokens", "matcher", "bad_words", "finish_reason",
    )  # fmt: skip

    def __init__(
        self,
        request_id: int,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        seed: int = 0,
        matcher: Any = None,
        bad_words: Sequence[Sequence[int]] = (),
    ) -> None:
        if not prompt_token_ids:
            raise ValueError("the prompt has no tokens: give at least one")
        self.request_id = request_id
        self.arrival = self.turn = -1
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.sampling = sampling
        self.seed = sampling.seed if sampling.seed is not None else seed
        ends = matcher is not None or not sampling.ignore_eos
        self.eos_token_ids = frozenset(sampling.stop_token_ids) | (eos_token_ids if ends else frozenset())
        self.matcher = matcher
        self.bad_words = bad_words
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.prefill_end = self.num_prompt_tokens
        self.block_table: list[int] = []
        self.state_slot = 0
        self.answer_state: KeptState | None = None
        self.branch = 0
        self.chain: Node | None = None
        self.num_chained_blocks = 0
        self.last_step = -1
        self.num_cached_tokens = 0
        self.num_shared_tokens = 0
        self.num_prompt_logprobs = 0
        self.miss: Miss | None = None
        self.lookup: PromptLookup | None = None
        self.num_preemptions = self.num_lost_tokens = 0
        self.finish_reason: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_known_tokens(self) -> int:
        """The number of tokens without the placeholder."""
        return len(self.token_ids) - (self.token_ids[-1] == PLACEHOLDER)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens known at its admission are still to be computed."""
        return self.num_computed_tokens < self.prefill_end

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of prompt tokens were requested and some are not known yet."""
        return self.sampling.prompt_logprobs is not None and self.num_prompt_logprobs < self.num_prompt_tokens - 1

    def __repr__(self) -> str:
        return f"Request({self.request_id}, {self.status}, {self.num_computed_tokens}/{self.num_tokens} computed)"
