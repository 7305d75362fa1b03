"""The effects of a burst: on its own requests, and on the answers that were streaming when it arrived."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

from roseplay.engine.records import EntryRecord, StepRow
from roseplay.recording.frame import BurstFigures
from roseplay.recording.run import RequestRun, Run
from roseplay.recording.schema import Frame
from roseplay.traffic.environment import num_cpus
from roseplay.traffic.metrics import percentile
from roseplay.traffic.pair import Step

PAUSE_RATIO, PAUSE_MS = 2.0, 5.0  # a gap is a pause if it exceeds the usual one by both
NOTICED_MS = 200.0  # a gap that readers always notice; also the limit for a pause if the usual gap is unknown
GIVE_UP_MS = 120_000.0  # longer than demos wait for a burst
BEFORE_MS = 3000.0  # the gaps before a burst that its picture shows
_MOST_GAPS = 50_000
_MOST_DRAWN = 5_000  # gaps that are kept of a burst for its picture; later ones lie beyond what it shows


class Gap(NamedTuple):
    """One gap between two tokens of an answer; ``t`` is the time of the second one."""

    request_id: int
    step_id: int
    t: float
    ms: float


class LongestStep(NamedTuple):
    step_id: int
    ms: float
    prompt_tokens: int


@dataclass(frozen=True, kw_only=True)
class BurstFacts:
    """One burst, from its arrival to its last first token or, where noted, to its end. Times are in ms."""

    burst: int
    kind: str | None  # ``None`` if unknown, like ``seed`` and ``answer``
    seed: int | None
    answer: int | None  # tokens of each of its answers
    knobs: Mapping[str, Any]  # at its arrival
    undisturbed: bool  # whether none was changed until its end
    arrived: float
    done: float
    prompts: int
    prompt_tokens: int
    saved_tokens: int  # of these, cached or shared
    shared_head: int  # tokens saved in most of its prompts
    cached_head: int  # tokens saved in each, so that they were computed earlier
    steps: int  # that computed its prompts
    longest: LongestStep | None  # of these
    streaming: int  # answers in progress when it arrived
    paused: int  # of those, how many then waited much longer than usual
    worst: Gap | None  # their longest gap that began before its last first token, whatever caused it
    usual_ms: float | None  # the median of earlier gaps under the same slow motion, unknown if that changed
    others_ms: float | None  # the longest gap of all other answers at that time
    waited: int  # number of its requests that waited for ``waited_for``
    waited_for: str | None  # ``blocks`` or ``batch``
    preempted: int  # answers that lost their blocks, up to its end
    own_gap_ms: float | None  # the median gap of its own answers, up to its end
    ttft_p50: float
    ttft_last: float  # the longest
    recomputed: int = 0  # tokens computed again for those that lost their blocks
    swapped: int = 0  # blocks copied to host memory for those
    reader_gap_ms: float | None = (
        None  # the median gap of the answers that were streaming, over the same time as ``worst``
    )
    cached_tokens: int = 0  # of the saved ones
    drafted: int = 0  # tokens that were guessed for its answers and computed, up to its end
    accepted: int = 0  # of these, how many were right
    ttft: tuple[float, ...] = ()  # of each of its requests
    # The time of the second token since its arrival and the gap: of the answers that were streaming, those among which
    # ``worst`` is the longest; of its own, up to its end, if none was streaming.
    gaps: tuple[tuple[float, float], ...] = ()
    # The others of the same answers, from ``BEFORE_MS`` before its arrival up to its end.
    gaps_around: tuple[tuple[float, float], ...] = ()
    # When the answer with ``worst`` got its tokens, from ``BEFORE_MS`` before its arrival to its end, since then.
    reader: tuple[float, ...] = ()
    prefills: tuple[Step, ...] = ()  # the steps that computed its prompts, with times since its arrival
    ended: float = 0.0  # when its last answer had ended; 0 until any has
    tokens_per_s: float | None = (
        None  # of all answers, to its end; ``None`` until all of its own have ended by themselves
    )
    factors: tuple[float, ...] = (1.0,)  # of slow motion, to its end; none of these times is converted
    others: float | None = None  # the share of the processors' time that other programs took, to its end

    @property
    def saved(self) -> float:
        """Share of its prompt tokens that were cached or shared."""
        return self.saved_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class BurstWatch:
    """Collects the facts of one burst, frame by frame, from its arrival until it is answered.

    Args:
        run: after the frame in which it arrived, which is also the first to ``take``.
        others_s: see ``Machine.others_s``.
    """

    def __init__(self, burst: int, run: Run, others_s: Callable[[], float | None]) -> None:
        self.burst = burst
        self._run = run
        self.arrived = min(request.submitted or 0.0 for request in run.of_burst(burst).values())
        self._streaming = {
            request_id
            for request_id, request in run.requests.items()
            if request.burst != burst and request.streamed_at(self.arrived)
        }
        self._knobs = run.knobs_at(self.arrived)
        self._usual_ms = run.usual_ms(self.arrived)
        before = (token for token in run.gaps_since(self.arrived - BEFORE_MS) if token.t <= self.arrived)
        self._earlier = [Gap(token.request_id, token.step_id, token.t, token.itl_ms or 0.0) for token in before]
        self._tokens = run.tokens_until(self.arrived)
        self._about: BurstFigures | None = None
        self._own: dict[int, RequestRun] = {}
        self._saved: dict[int, EntryRecord] = {}  # the newest entry of each of its requests
        self._waited: dict[str, set[int]] = {"blocks": set(), "batch": set()}
        self._preempted: set[int] = set()
        self._recomputed = self._swapped = self._drafted = self._accepted = 0
        self._steps = 0  # that computed its prompts
        self._longest: LongestStep | None = None
        self._prefills: list[Step] = []
        self._gaps: list[Gap] = []
        self._others_s, self._others_before = others_s, others_s()
        self._begun: float | None = None  # the time of the first frame
        self._now = 0.0

    def take(self, frame: Frame) -> None:
        self._now = frame["t"]
        self._begun = self._now if self._begun is None else self._begun
        figures = frame.get("burst")
        if figures and figures["burst"] == self.burst:
            self._about = figures
        self._own = self._run.of_burst(self.burst)
        for step in frame["steps"]:
            if step.t1 > self.arrived:
                self._take_step(step)
        for token in frame["tokens"]:
            self._accepted += token.itl_ms == 0 and token.request_id in self._own
            # Without a gap: a first token, or one that came with the one before.
            if token.itl_ms and token.t > self.arrived and len(self._gaps) < _MOST_GAPS:
                self._gaps.append(Gap(token.request_id, token.step_id, token.t, token.itl_ms))

    def _take_step(self, step: StepRow) -> None:
        entries = [entry for entry in step.entries if entry.request_id in self._own]
        self._saved.update((entry.request_id, entry) for entry in entries)
        if step.draft_tokens:
            self._drafted += sum(max(0, entry.decode_tokens - 1) for entry in entries)
        if step.limit in self._waited:
            self._waited[step.limit].update(self._own.keys() - self._saved.keys())
        self._preempted.update(step.preempted)
        self._recomputed += step.recomputed_tokens
        self._swapped += step.swapped_out
        if not any(entry.prompt_tokens for entry in entries):
            return
        self._steps += 1
        ms = step.t1 - step.t0
        tokens = step.prompt_tokens + step.decode_tokens
        self._prefills.append((step.t0 - self.arrived, step.t1 - self.arrived, tokens))
        if self._longest is None or ms > self._longest.ms:
            self._longest = LongestStep(step.step_id, ms, step.prompt_tokens)

    def answered(self, t: float) -> bool:
        """Whether all of its requests have ended, or are taking too long."""
        return t > self.arrived + GIVE_UP_MS or all(request.finished is not None for request in self._own.values())

    def computed(self, t: float) -> bool:
        """Whether its prompts are computed and the answers already streaming have gone on, or that takes too long."""
        if t > self.arrived + GIVE_UP_MS or not self._own:
            return True
        if any(request.first is None and request.finished is None for request in self._own.values()):
            return False
        done, requests = self._done, self._run.requests
        heard = {gap.request_id for gap in self._gaps if gap.t >= done}
        return all(i in heard or i not in requests or requests[i].finished is not None for i in self._streaming)

    @property
    def _done(self) -> float:
        return max(request.first or request.finished or self.arrived for request in self._own.values())

    def facts(self) -> BurstFacts | None:
        """Returns the facts once it is computed; ``None`` if some of its requests were stopped before answering."""
        requests, about = self._own, self._about
        ttft = sorted(request.ttft_ms for request in requests.values() if request.ttft_ms is not None)
        p50 = percentile(ttft, 50)
        if len(ttft) < max(len(requests), about["size"] if about else 0) or p50 is None:
            return None
        done = self._done
        here = [gap for gap in self._gaps if gap.t - gap.ms < done]
        readers = [gap for gap in here if gap.request_id in self._streaming]
        worst = max(readers, key=lambda gap: gap.ms, default=None)
        own_gaps = self._gaps_of(requests)
        factors = self._run.factors(self.arrived)
        usual = self._usual_ms if len(factors) == 1 else None
        pause = NOTICED_MS if usual is None else max(PAUSE_MS + usual, PAUSE_RATIO * usual)
        waited_for = max(self._waited, key=lambda limit: len(self._waited[limit]))
        saved = sorted(entry.cached + entry.shared for entry in self._saved.values())
        saved = [0] * (len(requests) - len(saved)) + saved
        return BurstFacts(
            burst=self.burst,
            kind=about["kind"] if about else None,
            seed=about["seed"] if about else None,
            answer=about["answer"] if about else None,
            knobs=self._knobs,
            undisturbed=all(t < self.arrived for t, _, _ in self._run.changes),
            arrived=self.arrived,
            done=done,
            prompts=len(requests),
            prompt_tokens=sum(request.prompt_tokens for request in requests.values()),
            saved_tokens=sum(saved),
            cached_tokens=sum(entry.cached for entry in self._saved.values()),
            shared_head=saved[len(saved) // 2],
            cached_head=saved[0],
            steps=self._steps,
            longest=self._longest,
            streaming=len(self._streaming),
            paused=len({gap.request_id for gap in readers if gap.ms > pause}),
            worst=worst,
            usual_ms=usual,
            others_ms=max((gap.ms for gap in here if gap.request_id not in self._streaming), default=None),
            waited=len(self._waited[waited_for]),
            waited_for=waited_for if self._waited[waited_for] else None,
            preempted=len(self._preempted),
            own_gap_ms=median(gap.ms for gap in own_gaps) if own_gaps else None,
            ttft_p50=p50,
            ttft_last=ttft[-1],
            ttft=tuple(ttft),
            gaps=self._since_arrival(readers if self._streaming else own_gaps),
            gaps_around=self._since_arrival(self._around(done)),
            reader=self._times_of(worst.request_id) if worst else (),
            ended=self._ended,
            tokens_per_s=self._tokens_per_s(),
            recomputed=self._recomputed,
            swapped=self._swapped,
            reader_gap_ms=median(gap.ms for gap in readers) if readers else None,
            drafted=self._drafted,
            accepted=self._accepted,
            factors=tuple(factors),
            prefills=tuple(self._prefills),
            others=self._others(),
        )

    def _others(self) -> float | None:
        """Returns the share of the processors' time that other programs have taken since its first frame."""
        before, after = self._others_before, self._others_s()
        took_s = (self._now - (self._begun or 0.0)) / 1000
        if before is None or after is None or took_s <= 0:
            return None
        return max(0.0, (after - before) / took_s / num_cpus())

    def _gaps_of(self, requests: Container[int]) -> list[Gap]:
        return [gap for gap in self._gaps if gap.request_id in requests]

    def _around(self, done: float) -> Iterator[Gap]:
        """Yields the gaps of answers that were streaming which ended before it arrived or began after ``done``."""
        yield from (gap for gap in self._earlier if gap.request_id in self._streaming)
        yield from (gap for gap in self._gaps_of(self._streaming) if gap.t - gap.ms >= done)

    def _times_of(self, request_id: int) -> tuple[float, ...]:
        return tuple(it.t - self.arrived for it in (*self._earlier, *self._gaps) if it.request_id == request_id)

    def _since_arrival(self, gaps: Iterable[Gap]) -> tuple[tuple[float, float], ...]:
        return tuple((gap.t - self.arrived, gap.ms) for gap in islice(gaps, _MOST_DRAWN))

    @property
    def _ended(self) -> float:
        return max((request.finished or 0.0 for request in self._own.values()), default=0.0)

    def _tokens_per_s(self) -> float | None:
        ended = self._ended
        if ended <= self.arrived or not all(request.ended_well for request in self._own.values()):
            return None
        return 1000 * (self._run.tokens_until(ended) - self._tokens) / (ended - self.arrived)
