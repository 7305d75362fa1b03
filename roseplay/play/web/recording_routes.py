"""The routes for recordings and exports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import FileResponse, StreamingResponse

from roseplay.play.page_host import PageHost
from roseplay.recording.export_process import PIECE_BYTES, ExportError, export_in_process, pieces
from roseplay.recording.exports import KINDS
from roseplay.recording.reader import demo_path

_FRESH = {"Cache-Control": "no-store"}
_BY_FILE = {kind.file: name for name, kind in KINDS.items()}


def add_recording_routes(app: FastAPI, host: PageHost) -> None:
    """Add ``/ui/export`` and the files below it, ``/ui/demo.jsonl`` and, in a replay, ``/ui/recording``."""

    @app.get("/ui/export")
    def figures(response: Response) -> dict[str, object]:
        response.headers.update(_FRESH)
        return dict(host.recorded())

    @app.get("/ui/export/{file}")
    def exported(file: str, tab: str = "") -> Response:
        if file not in _BY_FILE:
            raise HTTPException(404, f"there is no such file: use {', '.join(_BY_FILE)}")
        name = _BY_FILE[file]
        headers = {**_FRESH, "Content-Disposition": f'attachment; filename="roseplay-{file}"'}
        lines, media_type = host.recording(tab), KINDS[name].media_type
        if name == "recording":
            return StreamingResponse(pieces(lines), media_type=media_type, headers=headers)
        try:
            export = export_in_process(name, lines)
        except ExportError as error:
            raise HTTPException(503, str(error)) from None
        headers["Content-Length"] = str(os.fstat(export.fileno()).st_size)
        return StreamingResponse(_read(export), media_type=media_type, headers=headers)

    @app.get("/ui/demo.jsonl")
    def shipped() -> Response:
        if (path := demo_path()) is None:
            raise HTTPException(404, "this installation does not include a demo")
        return FileResponse(path, media_type=KINDS["recording"].media_type)

    @app.get("/ui/recording")
    def shown() -> Response:
        if not host.replaying:
            raise HTTPException(404, "this page has an engine: /ui/export/recording.jsonl is its current run")
        lines = host.recording()
        return StreamingResponse(pieces(lines), media_type=KINDS["recording"].media_type, headers=_FRESH)


def _read(file: BinaryIO) -> Iterator[bytes]:
    """Yields a file in pieces and closes it."""
    with file:
        while piece := file.read(PIECE_BYTES):
            yield piece
