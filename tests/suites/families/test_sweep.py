"""The table of model types in docs/models.md matches what trying them finds."""

from __future__ import annotations

import pytest
import transformers

from tests.suites.families import sweep
from tests.suites.families.family_check import check_family

# A few small models of each kind: accepted as they are, through patterns in their config, with keys of other layers,
# and refused by name, by their attention, and as an encoder-decoder.
SLOW = pytest.param("phimoe", marks=pytest.mark.slow)
SAMPLE = ("arcee", "camembert", SLOW, "gpt-sw3", "bloom", "mamba", "bart", "moshi")


@pytest.fixture(scope="module")
def documented() -> dict[str, tuple[str, str]]:
    if f"transformers {transformers.__version__}," not in sweep.DOC.read_text():
        pytest.skip("the table is of another version of transformers")
    return sweep.documented()


def test_all_model_types_are_in_the_table(documented: dict[str, tuple[str, str]]):
    assert sorted(documented) == sweep.model_types()
    assert {kind for kind, _ in documented.values()} == {"equal", "refused", "not built"}


@pytest.mark.parametrize("model_type", SAMPLE)
def test_a_sample_of_the_table(model_type: str, documented: dict[str, tuple[str, str]]):
    found = check_family(model_type)
    assert (found.kind, sweep.general(found)) == documented[model_type]


def test_the_table_can_be_read_back():
    found = [sweep.Finding("a", "equal"), sweep.Finding("b", "refused", "b is | odd"), sweep.Finding("c", "equal")]
    assert sweep.parse(sweep.table(found)) == {"a": ("equal", ""), "b": ("refused", "is / odd"), "c": ("equal", "")}


@pytest.mark.slow
def test_one_that_takes_too_long_is_a_row():
    found = list(sweep.sweep(["llama", "bloom"], limit_s=0.01))
    assert [finding.why for finding in found] == ["no result within 0 s"] * 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_table_is_what_a_sweep_finds(documented: dict[str, tuple[str, str]]):
    found = {finding.model_type: (finding.kind, sweep.general(finding)) for finding in sweep.sweep(sweep.model_types())}
    assert found == documented
