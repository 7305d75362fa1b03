"""An arm on simulated hardware: its runs take place in virtual time, in this process, at once."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np

from roseplay.clock import VirtualClock
from roseplay.config import EngineConfig, Knobs
from roseplay.core.info import EngineInfo, FreeMemory
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.prompts import encode_prompt
from roseplay.engine.request_metrics import RequestMetrics
from roseplay.extras.lab.measuring import MeasuredAnswer, MeasuredRun, RunError, RunTerms, StoppedError
from roseplay.extras.simulation.hardware import simulated_runner, tokenizer_of_simulated
from roseplay.extras.simulation.outcome import Simulated, SimulatedRequest
from roseplay.extras.simulation.runner import SimulatedRunner
from roseplay.extras.simulation.virtual import VirtualServer
from roseplay.traffic.prompts import Prompt
from roseplay.traffic.waits import waits_grow
from roseplay.traffic.workload import Workload

# Engine settings of this machine's hardware, which a cost model of other hardware does not have.
WITHOUT_EFFECT = (
    *("device", "dtype", "attention", "threads", "pack_weights", "fuse_ops", "record_steps", "mask_overlap"),
    *("latent_cache", "state_slots", "state_snapshots", "state_interval"),
)


class SimulatedArm:
    """Takes an engine's place where the hardware is simulated (``EngineConfig.run_as``).

    Requests arrive as a ``traffic.driver.Driver`` sends them, in virtual time, and get the times and step records that
    an engine with this config would give, had it a virtual clock.

    Raises:
        EngineStartError: the model is not found, cannot be simulated or does not fit; one line.
    """

    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, model: Any, config: EngineConfig, knobs: Knobs) -> None:
        self._clock = VirtualClock()
        self.tokenizer = tokenizer_of_simulated(model, config)
        self._config, self._knobs = config, knobs
        self._runner = simulated_runner(model, config, self._clock, self.tokenizer)
        self.info: EngineInfo = self._runner.info()
        self._servers: dict[float, VirtualServer] = {}  # the last used, by the factor of its durations
        self._encoded: dict[int, tuple[Prompt, list[int]]] = {}  # by the prompt's identity, as runs repeat them

    def set_knobs(self, **changes: Any) -> Knobs:
        """Change knobs from the next run on; returns all. Raises ``ValueError``, also for what cannot be simulated."""
        knobs = self._knobs.changed(changes)
        self.info.check_knobs(knobs)
        self._knobs = knobs
        return knobs

    def free_memory(self) -> FreeMemory:
        return self._runner.free_memory()

    def close(self) -> None:
        """Do nothing: it holds neither a process nor a model."""

    def run(self, workload: Workload, terms: RunTerms) -> MeasuredRun:
        """Simulate the workload, from a cold cache unless it is kept.

        Raises:
            StoppedError: the stop was set.
            RunError: a request was refused, or the run took too long.
        """
        prompts = {id(one.prompt) for one in workload}
        self._encoded = {key: tokens for key, tokens in self._encoded.items() if key in prompts}
        server = self._server(terms.durations)
        server.set_knobs(self._knobs)
        if not terms.keep_cache:
            server.scheduler.clear_cache()
        if terms.progress is not None:
            terms.progress.ended = lambda: server.num_ended
        traffic = [
            SimulatedRequest(
                one.at_s, self._tokens(one.prompt), one.params.max_new_tokens, one.params.tenant, one.params.priority
            )
            for one in workload
        ]
        stop, until_s = terms.stop, time.monotonic() + terms.time_limit_s
        played = server.play(traffic, terms.clients, cancelled=lambda: stop.is_set() or time.monotonic() > until_s)
        if stop.is_set():
            raise StoppedError
        if len(played.requests) < len(traffic) or server.scheduler.has_work:
            raise RunError(f"simulating a run took longer than {terms.time_limit_s:g} s: send less")
        if refused := [times.refused for times in played.requests if times.refused]:
            raise RunError(f"{len(refused)} of {len(traffic)} requests were refused: {refused[0]}")
        return self._run_of(played, workload, terms.clients)

    def _server(self, durations: float) -> VirtualServer:
        if durations not in self._servers:
            self._servers.clear()  # one pool at a time is enough
            runner = self._runner
            if durations != 1.0:
                cost = runner.cost.scaled(durations)
                runner = SimulatedRunner(cost, runner.evidence, self._config, self._clock, runner.text)
            self._servers[durations] = VirtualServer(
                runner, self._clock, self._knobs, max_waiting=self._config.max_waiting, records=True
            )
        return self._servers[durations]

    def _tokens(self, prompt: Prompt) -> list[int]:
        if id(prompt) not in self._encoded:
            self._encoded[id(prompt)] = prompt, encode_prompt(prompt, self.tokenizer, self.info.vocab_size)
        return self._encoded[id(prompt)][1]

    def _run_of(self, played: Simulated, workload: Workload, clients: int | None) -> MeasuredRun:
        one_by_one = self._knobs.admission == "blocking"
        answers = []
        for index, arrival in enumerate(workload):
            times, request = played.requests[index], played.served[index]
            tokens_ns = played.token_times_ns(index)
            first_ns, last_ns = int(tokens_ns[0]), int(tokens_ns[-1])
            metrics = RequestMetrics(
                submitted_ns=times.arrived_ns,
                prompt_tokens=times.prompt_tokens,
                scheduled_ns=times.scheduled_ns,
                first_token_ns=first_ns,
                last_token_ns=last_ns,
                finished_ns=last_ns,
                accepted_ns=first_ns if one_by_one else times.arrived_ns,
                cached_tokens=request.num_cached_tokens,
                shared_tokens=request.num_shared_tokens,
                completion_tokens=len(tokens_ns),
                num_preemptions=times.preemptions,
                itl_ns=np.diff(tokens_ns).tolist(),
            )
            answers.append(
                MeasuredAnswer(
                    due_ns=times.arrived_ns if clients else played.start_ns + round(arrival.at_s * 1e9),
                    submit_start_ns=times.arrived_ns,
                    submit_end_ns=metrics.accepted_ns or times.arrived_ns,
                    metrics=metrics,
                    tokens=request.token_ids[request.num_prompt_tokens :],
                    reason=str(request.finish_reason),
                    tenant=arrival.params.tenant,
                )
            )
        assert played.steps is not None
        over_time = answers[-1].submit_start_ns > answers[0].submit_start_ns  # a burst saturates nothing
        ttft_s = np.array([answer.metrics.ttft_s for answer in answers])
        return MeasuredRun(answers, played.steps, saturated=over_time and waits_grow(ttft_s.tolist()))
