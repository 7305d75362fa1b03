"""The lab of a page whose engine starts or is replaced."""

from __future__ import annotations

from roseplay.extras.lab.lab import Lab
from tests.play.conftest import client_of, models, serving_slow_start  # noqa: F401
from tests.play.model_host import ModelHost


def lab_of(host: ModelHost) -> Lab:
    lab = host.host.playground.services["lab"]
    assert isinstance(lab, Lab)
    return lab


def test_results_outlive_the_engine(models: ModelHost) -> None:  # noqa: F811
    before = lab_of(models)
    before.store.keep({"id": "result"})
    models.switch("other")
    assert lab_of(models) is not before
    assert lab_of(models).store.get("result") == {"id": "result"}
    assert lab_of(models).describe()["engine"]["model"] == "other"


def test_until_an_engine_is_live_it_is_refused() -> None:
    with serving_slow_start() as slow:
        client = client_of(slow.host)
        assert client.get("/ui/lab").status_code == client.post("/ui/lab/run", json={}).status_code == 503
        slow.go_live()
        assert client.get("/ui/lab").status_code == 200
