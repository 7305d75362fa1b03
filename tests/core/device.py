"""A simulated device: KV memory whose slots hold token histories, checked on every read.

What a request must return is known when it is submitted: its whole answer is a function of its prompt and seed. The
device writes into each slot the history that led there, and every read must find the reading request's own history.
``Guesses`` takes the place of a request's prompt lookup, and is right as often as a test wants.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from roseplay.config import Knobs
from roseplay.core.prompt_lookup import PromptLookup
from roseplay.core.request import PLACEHOLDER, FinishReason, Request
from roseplay.core.step import Step, StepEntry, StepResult, TokenLogprobs

VOCABULARY = 50
UNWRITTEN, NAN = -1, -2
WHY = "the model gave NaN logits"


class Histories:
    """Numbers token histories: equal histories have equal numbers, different ones do not. 0 is the empty history."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._made_of: list[tuple[int, int]] = [(0, 0)]

    def extend(self, history: int, token: int) -> int:
        number = self._numbers.setdefault((history, token), len(self._made_of))
        if number == len(self._made_of):
            self._made_of.append((history, token))
        return number

    def tokens(self, history: int) -> list[int]:
        """The tokens of a history."""
        tokens = []
        while history:
            history, token = self._made_of[history]
            tokens.append(token)
        return tokens[::-1]


def draw(history: int, seed: int) -> int:
    """The token that a request with ``seed`` draws after ``history``; never 0."""
    return 1 + hash((history, seed)) % (VOCABULARY - 1)


class Truth:
    """What a request must return if nothing disturbs it.

    Attributes:
        tokens: the prompt and the whole answer.
        histories: the number of each prefix of ``tokens``, by its length.
        reason: why the answer ends.
    """

    def __init__(self, histories: Histories, request: Request) -> None:
        self.request = request
        self.tokens = list(request.token_ids)
        self.histories = [0]
        for token in self.tokens:
            self.histories.append(histories.extend(self.histories[-1], token))
        self.reason = FinishReason.LENGTH
        for _ in range(request.sampling.max_new_tokens):
            token = draw(self.histories[-1], request.seed)
            self.tokens.append(token)
            self.histories.append(histories.extend(self.histories[-1], token))
            if token in request.eos_token_ids:
                self.reason = FinishReason.STOP
                break

    def prompt_logprobs(self, positions: range) -> list[TokenLogprobs]:
        """What the device returns for these tokens of the prompt."""
        assert positions[-1] < self.request.num_prompt_tokens
        return [TokenLogprobs(-float(self.histories[position + 1]), []) for position in positions]


class Guesses(PromptLookup):
    """Guesses a request's next tokens from the oracle; some are wrong, so that a step has to take back the rest."""

    def __init__(self, truth: Truth, right: float) -> None:
        super().__init__(ngram=Knobs().lookup_ngram)
        self._truth, self._right = truth, right

    def draft(self, token_ids: Sequence[int], most: int, least_likely: float) -> Sequence[int]:
        rng, begin = random.Random(len(token_ids)), len(token_ids)
        tokens = [*self._truth.tokens[begin : begin + max(0, most)], *[7] * most][: max(0, most)]
        return [token if rng.random() < self._right else 1 + rng.randrange(VOCABULARY - 1) for token in tokens]


class Device:
    """Executes steps in order. It knows the tokens it draws before the scheduler does."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots = [[UNWRITTEN] * block_size for _ in range(num_blocks)]
        self.host: dict[int, list[int]] = {}  # by host block
        self.states: dict[int, int] = {}  # by state slot, including slots of kept states
        self.saved: dict[int, int] = {}
        self.drawn: dict[int, int] = {}
        self.histories = Histories()
        self.truths: dict[int, Truth] = {}
        self._has_nan = False

    def execute(self, step: Step, broken: int | None = None) -> StepResult:
        """Execute a step. The entry with index ``broken`` computes NaN, as do all entries that read what it wrote."""
        for key in step.dropped_logits:
            self.saved.pop(key, None)
        self._swap(step)
        copied = [list(self.slots[source]) for source, _ in step.copies]
        for (_, destination), content in zip(step.copies, copied, strict=True):
            self.slots[destination] = content
        self._copy_states(step.states_before)
        self._has_nan |= broken is not None
        written: set[tuple[int, int]] = set()
        for index, entry in enumerate(step.entries):
            self._write(entry, written, index == broken or self._starts_from_nan(entry))
        while any(self._spread(entry) for entry in step.entries):  # also to entries that share blocks of this very step
            pass
        for entry in step.entries:
            self._read(entry)
        used = [entry.request.state_slot for entry in step.entries if entry.request.state_slot]
        assert len(set(used)) == len(used), "two requests of a step have the same state slot"
        for entry in step.entries:
            self._advance(entry)
        self._copy_states(step.states_after)
        for entry in step.entries:
            if entry.save_logits_key is not None:
                self.saved[entry.save_logits_key] = self._last_history(entry)
        histories = [self._sampled_history(step, entry) for entry in step.entries]
        result = StepResult([], [None] * len(step.entries))
        for index, positions in step.prompt_logprobs.items():
            result.prompt_logprobs[index] = self._prompt_logprobs(step.entries[index], positions)
        for index, (entry, history) in enumerate(zip(step.entries, histories, strict=True)):
            if history == NAN or (index in step.prompt_logprobs and self._is_nan(entry)):
                result.errors[index] = WHY
            if history == NAN:
                history = self._history(entry.request)  # the token it would have drawn, whichever entry computes it
            token = draw(history, entry.request.seed) if history is not None else None
            if token is not None:
                self.drawn[entry.request.request_id] = token
            result.token_ids.append(None if index in result.errors else token)
            if entry.draft:
                drawn = [] if index in result.errors else self._histories(entry)[-len(entry.draft) :]
                result.after_draft[index] = [(draw(after, entry.request.seed), None) for after in drawn]
        return result

    def spoil(self, step: Step) -> None:
        """The step fails: the content of the slots it was to write is unknown, unless they already held the same.

        NaN stays: layers that the step did not reach keep it, so that a request that reads the slot fails.
        """
        for key in step.dropped_logits:
            self.saved.pop(key, None)
        for _, host_block in step.swapped_out:
            self.host[host_block] = [UNWRITTEN] * self.block_size
        for _, destination in [*step.swapped_in, *step.copies]:
            self.slots[destination] = [UNWRITTEN] * self.block_size
        for _, destination in [*step.states_before, *step.states_after]:
            self.states[destination] = UNWRITTEN
        for entry in step.entries:
            if entry.num_tokens:
                self.states[entry.request.state_slot] = UNWRITTEN
        for entry in step.entries:
            expected = self._histories(entry)
            for position in range(entry.start, entry.start + entry.num_tokens):
                index, offset = divmod(position, self.block_size)
                slots = self.slots[entry.request.block_table[index]]
                if slots[offset] not in (NAN, expected[position + 1]):
                    slots[offset] = UNWRITTEN

    def _histories(self, entry: StepEntry) -> list[int]:
        """The histories that the entry's tokens lead to, by their length: its own, and those with its draft."""
        histories = self.truths[entry.request.request_id].histories[: entry.request.num_tokens + 1]
        for token in entry.draft:
            histories.append(self.histories.extend(histories[-1], token))
        return histories

    def _write(self, entry: StepEntry, written: set[tuple[int, int]], broken: bool) -> None:
        request, truth, histories = entry.request, self.truths[entry.request.request_id], self._histories(entry)
        for position in range(entry.start, entry.start + entry.num_tokens):
            index, offset = divmod(position, self.block_size)
            block = request.block_table[index]
            assert block != 0, "block 0 is never handed out"
            assert (block, offset) not in written, f"two requests write slot {offset} of block {block} in one step"
            written.add((block, offset))
            if position < request.num_tokens:
                token = request.token_ids[position]
                if token == PLACEHOLDER:
                    token = self.drawn[request.request_id]
                assert token == truth.tokens[position], f"{request} computes a wrong token at {position}"
            self.slots[block][offset] = NAN if broken else histories[position + 1]

    def _swap(self, step: Step) -> None:
        """Copy blocks to host memory, then others from there; nothing is copied twice into one block."""
        for pairs in (step.swapped_out, step.swapped_in):
            assert len({destination for _, destination in pairs}) == len(pairs)
        for block, host_block in step.swapped_out:
            self.host[host_block] = list(self.slots[block])
        for host_block, block in step.swapped_in:
            assert block != 0, "block 0 is never handed out"
            self.slots[block] = list(self.host[host_block])

    def _copy_states(self, copies: list[tuple[int, int]]) -> None:
        assert len({destination for _, destination in copies}) == len(copies), "two states are copied into one slot"
        read = [self.states[source] for source, _ in copies]
        for (_, destination), history in zip(copies, read, strict=True):
            assert destination != 0, "state slot 0 is never handed out"
            self.states[destination] = history

    def _starts_from_nan(self, entry: StepEntry) -> bool:
        slot = entry.request.state_slot
        return bool(slot and entry.start and entry.num_tokens) and self.states.get(slot) == NAN

    def _is_nan(self, entry: StepEntry) -> bool:
        if not self._has_nan:
            return False
        size, end = self.block_size, entry.start + entry.num_tokens
        blocks = entry.request.block_table[: -(-end // size)]
        return any(NAN in self.slots[block][: end - index * size] for index, block in enumerate(blocks))

    def _spread(self, entry: StepEntry) -> bool:
        """An entry that reads NaN writes NaN. Returns whether any slot changed."""
        if not entry.num_tokens or not self._is_nan(entry):
            return False
        news = False
        for position in range(entry.start, entry.start + entry.num_tokens):
            index, offset = divmod(position, self.block_size)
            slots = self.slots[entry.request.block_table[index]]
            news |= slots[offset] != NAN
            slots[offset] = NAN
        return news

    def _read(self, entry: StepEntry) -> None:
        """Attention reads every slot up to the entry's last token and must find the request's own history or NaN."""
        request, size = entry.request, self.block_size
        end = entry.start + entry.num_tokens
        assert not entry.draft or end == request.num_tokens + len(entry.draft), "a draft is not behind the known tokens"
        expected = self._histories(entry)
        for index in range(-(-end // size)):
            stop = min((index + 1) * size, end)
            found = self.slots[request.block_table[index]][: stop - index * size]
            own = expected[index * size + 1 : stop + 1]
            if found != own:
                right = all(slot in (NAN, history) for slot, history in zip(found, own, strict=True))
                assert right, f"{request} reads another history in block {index}"

    def _advance(self, entry: StepEntry) -> None:
        """A request of a model with recurrent layers continues from its own state and leaves the next one."""
        slot, truth = entry.request.state_slot, self.truths[entry.request.request_id]
        if not slot or not entry.num_tokens:
            return
        before = self.states.get(slot) if entry.start else 0
        assert before in (NAN, truth.histories[entry.start]), f"{entry.request} continues from another state"
        self.states[slot] = NAN if self._is_nan(entry) else truth.histories[entry.start + entry.num_tokens]

    def _history(self, request: Request) -> int:
        return self.truths[request.request_id].histories[request.num_tokens]

    def _last_history(self, entry: StepEntry) -> int:
        assert entry.num_tokens > 0, "an entry without tokens has no logits"
        if self._is_nan(entry):
            return NAN
        return self.truths[entry.request.request_id].histories[entry.start + entry.num_tokens - len(entry.draft)]

    def _prompt_logprobs(self, entry: StepEntry, positions: range) -> list[TokenLogprobs]:
        """Each value identifies the history that ends with its token; the entry must compute the token before it."""
        assert entry.start < positions[0], "a token is predicted by one that was not computed"
        assert positions[-1] <= entry.start + entry.num_tokens
        return self.truths[entry.request.request_id].prompt_logprobs(positions)

    def _sampled_history(self, step: Step, entry: StepEntry) -> int | None:
        """The history whose logits the entry samples from; None if it does not sample."""
        if not entry.samples:
            assert entry.logits_entry is None
            assert entry.logits_key is None
            return None
        assert (entry.logits_entry is None) != (entry.logits_key is None)
        if entry.logits_entry is not None:
            history = self._last_history(step.entries[entry.logits_entry])
        else:
            assert entry.logits_key is not None
            history = self.saved[entry.logits_key]
        assert history in (NAN, self._history(entry.request)), f"{entry.request} draws from another history's logits"
        return history
