"""The lab's routes. The reply to an invalid request is a sentence, as ``{"detail": …}``."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool

from roseplay.extras.lab.document import Result
from roseplay.extras.lab.lab import Lab
from roseplay.extras.lab.order import LimitsOrder
from roseplay.extras.lab.points import point_rows
from roseplay.extras.lab.report import html_report
from roseplay.extras.lab.results import checked, parse_result, points_csv, summary_of
from roseplay.formats.invalid import Input, validated
from roseplay.formats.json_text import encode, strict_json
from roseplay.play.page_host import PageHost
from roseplay.play.web.calls import NO_STORE, http_refusals

_REPORT_HEADERS = {
    "Cache-Control": "no-store",
    # A document may come from anywhere: its report may run its own script but load nothing.
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; sandbox allow-scripts allow-downloads",
}


class SummaryOrder(Input):
    """A result, by its id or as a whole, and other limits for it."""

    id: str | None = None
    document: Any = None
    limits: LimitsOrder | None = None


def lab_router(host: PageHost) -> APIRouter:
    """Returns the routes under ``/ui/lab``."""
    router = APIRouter(prefix="/ui/lab", dependencies=[NO_STORE])

    @router.get("")
    def describe() -> dict[str, object]:
        return lab_of(host).describe()

    @router.post("/run")
    async def run(request: Request) -> dict[str, str]:
        with http_refusals():
            job = await run_in_threadpool(lab_of(host).start, strict_json(await request.body()))
        return {"job": job.job_id}

    @router.get("/job")
    def job(id: str = "", have: int = 0) -> dict[str, object]:
        if (experiment := lab_of(host).job(id)) is None:
            raise HTTPException(404, "this experiment is not known here: the server started another, or was restarted")
        status, so_far = experiment.status(), experiment.so_far
        if have and so_far and so_far["kind"] != "compare" and sum(row["runs"] for row in point_rows(so_far)) <= have:
            del status["so_far"]  # the page already has these runs
        return status

    @router.post("/stop")
    def stop() -> dict[str, bool]:
        return {"stopped": lab_of(host).stop()}

    @router.get("/result/{document_id}")
    def result(document_id: str) -> Response:
        return _answer(_result(lab_of(host), document_id))

    @router.get("/result/{document_id}/report.html")
    def report(document_id: str) -> Response:
        report = html_report(_result(lab_of(host), document_id))
        return Response(report, media_type="text/html", headers=_REPORT_HEADERS)

    @router.get("/result/{document_id}/points.csv")
    def points(document_id: str) -> Response:
        document = _result(lab_of(host), document_id)
        if document["kind"] == "compare":
            raise HTTPException(404, "a comparison of A and B has no values to list as CSV: download its JSON")
        name = f"roseplay-lab-{document['scenario']}-{document['setting']}.csv"
        headers = {"Cache-Control": "no-store", "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}"}
        return Response(points_csv(document), media_type="text/csv", headers=headers)

    @router.post("/open")
    async def open_document(request: Request) -> Response:
        return await run_in_threadpool(_opened, lab_of(host), await request.body())

    @router.post("/summary")
    async def again(request: Request) -> Response:
        return await run_in_threadpool(_summary, lab_of(host), await request.body())

    return router


def lab_of(host: PageHost) -> Lab:
    lab = host.playground.services["lab"]
    assert isinstance(lab, Lab)
    return lab


def _result(lab: Lab, document_id: str) -> Result:
    if (document := lab.store.get(document_id)) is None:
        raise HTTPException(404, "this result is no longer kept here: run it again, or open its file")
    return document


def _opened(lab: Lab, text: bytes) -> Response:
    """Store a result from a file; returns its ID and summary."""
    with http_refusals():
        document = parse_result(text)
    return _answer({"id": lab.store.keep_opened(document), "summary": document["summary"]})


def _summary(lab: Lab, text: bytes) -> Response:
    """Returns the summary of a result for other limits."""
    with http_refusals():
        order = validated(SummaryOrder, strict_json(text), "the body")
        if order.document is not None:
            document = checked(order.document)
        elif order.id is not None:
            document = _result(lab, order.id)
        else:
            raise ValueError("send the id of a result, or the document, and the limits")
        if document["kind"] != "compare":
            raise ValueError("a sweep or a search keeps figures, not requests: other limits need another run")
        limits = document["limits"] if order.limits is None else order.limits.values()
        return _answer(summary_of({**document, "limits": limits}))


def _answer(value: Any) -> Response:
    return Response(encode(value), media_type="application/json", headers={"Cache-Control": "no-store"})
