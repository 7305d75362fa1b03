"""The fair policy: a virtual token counter for each tenant, as in VTC (Sheng et al., OSDI 2024).

A tenant's counter grows by the tokens of its prompts when they are admitted, and by those of its answers, which weigh
twice as much, as they are drawn. VTC counts whole prompts. Here, as in DLPM (Cao et al., 2025), service is what is
computed: prompt tokens that are cached, or that another request computes in the same step, are not counted.

The tenant with the lowest counter is next, with its oldest request. A tenant that begins to wait is lifted to the lowest
counter of those that wait, so that nobody saves up service by being idle. Between two tenants that both have requests
waiting all the time, the service that they get then differs by at most twice the larger of the longest prompt and the
tokens of a full batch, each with its weight; requests without a tenant are those of one more tenant.

Nothing is counted while tokens are drawn: counters are brought up to date when a step is scheduled that may admit, and
before each choice, since only after an admission is it known how much of the prompt was cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace

from roseplay.core.policies import Find, Policy, Waiting
from roseplay.core.request import Request

PROMPT_WEIGHT, ANSWER_WEIGHT = 1, 2
_FEW = 1024


class _Tenant:
    """A tenant's counter and its requests.

    Attributes:
        waiting: its requests that wait for their first admission, by arrival.
        num_admitted: its requests that have been admitted and have not ended.
        in_heap: whether there is an entry of it in the heap, which may be too low.
    """

    __slots__ = ("counter", "in_heap", "num_admitted", "waiting")

    def __init__(self) -> None:
        self.counter = self.num_admitted = 0
        self.in_heap = False
        self.waiting: Waiting = OrderedDict()

    @property
    def key(self) -> tuple[int, int]:
        return self.counter, next(iter(self.waiting))


class FairShare(Policy):
    """The tenant that has been served least is next, with its oldest request.

    Within a tenant nothing is overtaken. A tenant is overdue once ``most`` requests for each tenant that waits have been
    admitted since its own last one was, or since it began to wait.
    """

    changes = True

    def __init__(self) -> None:
        self._tenants: dict[str | None, _Tenant] = {}
        self._heap: list[tuple[int, int, _Tenant]] = []
        self._since: OrderedDict[_Tenant, int] = OrderedDict()  # the tenants that wait, the longest waiting first
        self._charged: dict[int, int] = {}  # the service that has been counted, of each admitted request
        self._arrived: list[Request] = []
        self._admitted: list[Request] = []  # since counters were brought up to date
        self._last = _Tenant()  # the tenant whose last waiting request left most recently
        self._prune_at = _FEW

    def counter(self, tenant: str | None) -> int:
        """Returns a tenant's counter; 0 for one that is not known."""
        entry = self._tenants.get(tenant)
        return 0 if entry is None else entry.counter

    # -- what happens

    def add(self, request: Request) -> None:
        self._arrived.append(request)

    def begin_step(self, waiting: Waiting, num_admitted: int, running: Sequence[Request], find: Find) -> None:
        self._admitted = []
        for request in running:
            self._charge(request)
        for request in self._arrived:
            if request.arrival in waiting:
                self._enqueue(request, num_admitted)
        self._arrived = []

    def admitted(self, request: Request, num_admitted: int) -> None:
        tenant = self._of(request)
        tenant.num_admitted += 1
        self._charged[request.request_id] = 0
        self._admitted.append(request)
        self._leave(tenant, request)
        if tenant.waiting:
            self._since[tenant] = num_admitted
            self._since.move_to_end(tenant)

    def returned(self, request: Request) -> None:
        self._charge(request)

    def ended(self, request: Request) -> None:
        tenant = self._of(request)
        if request.request_id in self._charged:
            self._charge(request)
            del self._charged[request.request_id]
            tenant.num_admitted -= 1
        elif request.arrival in tenant.waiting:
            self._leave(tenant, request)
        if len(self._tenants) > self._prune_at:
            self._forget_idle()

    # -- choosing

    def overdue(self, waiting: Waiting, num_admitted: int, num_cancelled: int, most: int) -> Request | None:
        tenant, since = next(iter(self._since.items()))
        return next(iter(tenant.waiting.values())) if num_admitted - since >= most * len(self._since) else None

    def choose(self, waiting: Waiting) -> Request:
        for request in self._admitted:
            if request.request_id in self._charged:
                self._charge(request)
        self._admitted = []
        tenant = self._least()
        assert tenant is not None
        return next(iter(tenant.waiting.values()))

    def _least(self) -> _Tenant | None:
        """Returns the waiting tenant with the lowest counter; entries of the heap are raised as they come first."""
        while self._heap:
            counter, arrival, tenant = self._heap[0]
            if not tenant.waiting:
                heappop(self._heap)
                tenant.in_heap = False
            elif (counter, arrival) != tenant.key:
                heapreplace(self._heap, (*tenant.key, tenant))
            else:
                return tenant
        return None

    # -- counting

    def _of(self, request: Request) -> _Tenant:
        if (tenant := self._tenants.get(request.sampling.tenant)) is None:
            tenant = self._tenants[request.sampling.tenant] = _Tenant()
        return tenant

    def _charge(self, request: Request) -> None:
        """Count a request's service since the last time; not that from before this policy was chosen.

        A counter never falls: if more of a prompt is found in the cache later, tokens of the answer make up for it.
        """
        computed = request.num_prompt_tokens - request.num_cached_tokens - request.num_shared_tokens
        service = PROMPT_WEIGHT * computed + ANSWER_WEIGHT * request.num_output_tokens
        if (charged := self._charged.get(request.request_id)) is None:
            self._of(request).num_admitted += 1
            charged = service
        self._of(request).counter += max(0, service - charged)
        self._charged[request.request_id] = max(service, charged)

    def _enqueue(self, request: Request, num_admitted: int) -> None:
        tenant = self._of(request)
        if not tenant.waiting:
            least = self._least()  # None if no tenant waits
            tenant.counter = max(tenant.counter, (least or self._last).counter)
            self._since[tenant] = num_admitted
        tenant.waiting[request.arrival] = request
        if not tenant.in_heap:
            heappush(self._heap, (*tenant.key, tenant))
            tenant.in_heap = True

    def _leave(self, tenant: _Tenant, request: Request) -> None:
        del tenant.waiting[request.arrival]
        if not tenant.waiting:
            del self._since[tenant]
            self._last = tenant

    def _forget_idle(self) -> None:
        """Forget tenants whose counter would be lifted anyway if they came back."""
        floor = (self._least() or self._last).counter
        self._tenants = {
            name: tenant
            for name, tenant in self._tenants.items()
            if tenant.waiting or tenant.num_admitted or tenant.counter > floor
        }
        self._prune_at = 2 * len(self._tenants) + _FEW
