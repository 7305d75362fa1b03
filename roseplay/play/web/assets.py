"""The page's own files: scripts, styles and the plotly bundle, under addresses that carry their version.

A version in the address lets browsers keep a file for good: a changed file has another address.
"""

from __future__ import annotations

import hashlib
import mimetypes
from functools import cache
from pathlib import Path

import plotly
from fastapi import APIRouter, HTTPException, Response
from fastapi.responses import FileResponse

STATIC = Path(__file__).parents[1] / "static"
STYLES = (
    "tokens.css",
    "shell.css",
    "controls.css",
    "lanes.css",
    "turns.css",
    "sampling.css",
    "charts.css",
    "popover.css",
    "lab.css",
    "replay.css",
    "connection.css",
    "narrow.css",
)

# In order: each may use what those before it have put on window.Rose. What is in neither list is a helper of the views.
CORE = (
    "dom.js",
    "store.js",
    "blocks.js",
    "time.js",
    "theme.js",
    "view.js",
    "gaps.js",
    "poll.js",
    "format.js",
    "lock.js",
    "connection.js",
    "turns.js",
    "picking.js",
    "lanetools.js",
    "lanes.js",
    "sampling.js",
    "figures.js",
    "ledger.js",
    "knobs.js",
    "keys.js",
    "labdoor.js",
    "recording.js",
    "replaylanes.js",
    "replay.js",
    "replaybar.js",
    "traces.js",
)
VIEWS = ("itl.js", "tokens.js", "ttft.js", "kvtime.js", "steps.js", "blockmap.js")
LAB = ("lab.js", "labdraw.js", "labcards.js", "labjob.js", "labsettings.js", "labresult.js", "labcurves.js", "labsteps.js",
       "labgoodput.js", "labkeep.js", "labfiles.js")  # fmt: skip
HEAD_SCRIPTS = ("boot.js",)
FOREVER = "public, max-age=31536000, immutable"

router = APIRouter(prefix="/ui")


def has(name: str) -> bool:
    """Whether there is such a static file."""
    return (STATIC / name).is_file()


@cache
def version() -> str:
    """Of all static files together."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def plotly_address() -> str:
    """Where the page gets it, once everything else is there (``charts.js``)."""
    return f"/ui/plotly.min.js?v={plotly_bundle()[1]}"


@cache
def plotly_bundle() -> tuple[Path, str]:
    """plotly.js as the installed plotly package brings it, and its version."""
    return Path(plotly.__file__).parent / "package_data" / "plotly.min.js", str(plotly.__version__)


def script_tags(*, charts: bool, lab: bool = False) -> str:
    """The page's scripts for ``head=`` of a component: what every part needs, what charts need besides, what the Lab does.

    Gradio awaits them before the component's ``js_on_load``, loads each once and runs them in this order.
    """
    names = [name for name in CORE if has(name)]
    sources = [f"/ui/static/{version()}/{name}" for name in names]
    if charts:
        known = {*CORE, *VIEWS, *LAB, *HEAD_SCRIPTS}
        helpers = sorted(path.name for path in STATIC.glob("*.js") if path.name not in known)
        sources += [f"/ui/static/{version()}/{name}" for name in (*helpers, *filter(has, VIEWS))]
    if lab:
        sources += [f"/ui/static/{version()}/{name}" for name in LAB]
    return "".join(f'<script src="{source}"></script>' for source in sources)


def styles() -> str:
    """All of the page's CSS. It goes into the page's head as it is: Gradio rewrites what comes in by ``css=``."""
    return "\n".join((STATIC / name).read_text(encoding="utf-8") for name in STYLES if has(name))


@router.get("/static/{wanted}/{name}")
def static_file(wanted: str, name: str) -> Response:
    path = STATIC / name
    if wanted != version() or path.parent != STATIC or not path.is_file():
        raise HTTPException(404)
    return _forever(path)


@router.get("/plotly.min.js")
def plotly_file() -> Response:
    return _forever(plotly_bundle()[0])


def _forever(path: Path) -> Response:
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return FileResponse(path, media_type=kind, headers={"Cache-Control": FOREVER})
