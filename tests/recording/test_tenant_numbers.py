"""What all tabs see of a request's tenant and priority: a number for the one, an exact integer for the other."""

from __future__ import annotations

from roseplay.config import SamplingParams
from roseplay.recording.tenant_numbers import MOST_PRIORITY, TenantNumbers


def test_tenants_are_numbered_in_order_of_appearance_and_the_oldest_of_too_many_is_forgotten() -> None:
    numbers = TenantNumbers(most=2)
    names = ("b", "a", "b", None, "c", "a", "b")
    assert [numbers.of(SamplingParams(tenant=name))[0] for name in names] == [1, 2, 1, None, 3, 2, 4]


def test_a_priority_fits_a_script() -> None:
    priorities = [TenantNumbers().of(SamplingParams(priority=value))[1] for value in (0, -3, 10**30, -(10**30))]
    assert priorities == [0, -3, MOST_PRIORITY, -MOST_PRIORITY]
