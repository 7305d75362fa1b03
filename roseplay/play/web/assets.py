"""The page's own files: scripts, styles and plotly.js, under addresses that contain their version.

So browsers can cache a file for ever: a changed file has another address.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import re
from functools import cache
from pathlib import Path, PurePosixPath

from fastapi import APIRouter, HTTPException, Request, Response

import roseplay
from roseplay.formats.report_page import TOKENS
from roseplay.play.tab import added_tabs
from roseplay.play.web.scripts import PAGE, joined

STATIC = Path(__file__).parents[1] / "static"
STYLES = (
    "base.css",
    "components/text.css",
    "components/button.css",
    "components/field.css",
    "components/slider.css",
    "components/meter.css",
    "components/popover.css",
    "components/table.css",
    "shell.css",
    "story.css",
    "start.css",
    "controls.css",
    "lanes.css",
    "turns.css",
    "sampling.css",
    "charts.css",
    "requests.css",
    "models.css",
    "simulation.css",
    "replay.css",
    "components/tone.css",
    "connection.css",
    "narrow.css",
    "absent.css",
    "first.css",
)

FOREVER = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
_PLOTLY = "plotly-basic.min.js"
_PACKED = (".js", ".map", ".css", ".svg")

router = APIRouter(prefix="/ui")


@cache
def files() -> dict[str, Path]:
    """Returns every static file, those of tabs in a folder of their name, by its address below the version."""
    folders = {"": STATIC, **{tab.name: tab.static for tab in added_tabs()}}
    return {
        PurePosixPath(name, path.relative_to(folder)).as_posix(): path
        for name, folder in folders.items()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@cache
def version() -> str:
    """Returns the common version of all static files and the scripts into which they are joined."""
    digest = hashlib.sha256()
    for name, path in files().items():
        digest.update(name.encode() + path.read_bytes())
    for text in joined().values():
        digest.update(text.encode())
    return digest.hexdigest()[:12]


def address(name: str) -> str:
    """Returns the address of a static file."""
    if name not in files() and name not in joined():
        raise ValueError(f"there is no static file {name}")
    return f"/ui/static/{version()}/{name}"


def plotly_address() -> str:
    """Returns the address of plotly.js, which the page loads after everything else (``shared/chart/plotly.js``)."""
    return f"/ui/{_PLOTLY}?v={hashlib.sha256(plotly_file().read_bytes()).hexdigest()[:12]}"


@cache
def plotly_file() -> Path:
    """Returns the plotly.js that ships with roseplay: plotly's basic bundle, a quarter of the size of the whole."""
    package = Path(roseplay.__file__).parent
    places = (folder / "assets" / "plotly" / _PLOTLY for folder in (package, package.parent))
    return next(place for place in places if place.is_file())


def mount(module: str, *events: str) -> str:
    """Returns a component's ``js_on_load`` that has a module of the page fill it.

    The module's ``mount`` gets the component's element and, for each of its events, a function that triggers it. Gradio
    neither loads modules from ``head=`` nor awaits ``js_on_load``, and needs neither: ``import`` waits for the module.
    """
    triggers = ", ".join(f"{event}: (data) => trigger('{event}', data)" for event in events)
    return f"{_load(module)}.then(({{ mount }}) => mount(element, {{ {triggers} }}));"


def call(module: str, function: str, *first: str) -> str:
    """Returns an event's ``js=`` that calls a module's function with ``first`` and then the event's inputs."""
    arguments = "".join(f"'{value}', " for value in first)
    return f"async (...inputs) => (await {_load(module)}).{function}({arguments}...inputs)"


def _load(module: str) -> str:
    """Returns JavaScript for a promise of a page module's exports."""
    if module not in files():
        raise ValueError(f"there is no static file {module}")
    # An absolute address: Chromium compiles equal texts once for all tabs of a process, and a relative one would lead to
    # the server of the first tab, even from the page of another.
    return f"import(new URL('{address(PAGE)}', document.baseURI).href).then(({{ load }}) => load('{module}'))"


def head() -> str:
    """Returns the page's styles, and its script, fetched while Gradio's scripts run, for ``page_head``."""
    boot = (STATIC / "boot.js").read_text(encoding="utf-8")
    # Gradio rewrites styles that are passed as ``css=``.
    return f"<style>{styles()}</style>{preload(PAGE)}<script>{boot}</script>"


@cache
def styles() -> str:
    """Returns the page's styles as one text, without comments and indentation."""
    of_tabs = (tab.static / name for tab in added_tabs() for name in tab.styles)
    paths = (TOKENS, *(STATIC / name for name in STYLES), *of_tabs)
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    return re.sub(r"/\*.*?\*/|\s+", " ", text, flags=re.DOTALL)


def preload(script: str) -> str:
    """Returns a link that makes the browser fetch one of the page's scripts at once."""
    return f'<link rel="modulepreload" fetchpriority="low" href="{address(script)}">'


@router.get("/static/{wanted}/{name:path}")
def static_file(request: Request, wanted: str, name: str) -> Response:
    if wanted != version() or (name not in files() and name not in joined()):
        raise HTTPException(404)
    return _file(request, name)


@router.get(f"/{_PLOTLY}")
def send_plotly(request: Request) -> Response:
    return _file(request, _PLOTLY)


def _file(request: Request, name: str) -> Response:
    """Returns a reply with a file, compressed if the browser accepts that."""
    packed = Path(name).suffix in _PACKED and "gzip" in request.headers.get("accept-encoding", "")
    headers = FOREVER | ({"Content-Encoding": "gzip"} if packed else {})
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(_content(name, packed), media_type=kind, headers=headers)


@cache
def _content(name: str, packed: bool) -> bytes:
    if packed:  # plotly.js shrinks from 1.2 to 0.4 MB
        return gzip.compress(_content(name, False), mtime=0)
    if name in joined():
        return joined()[name].encode()
    return (plotly_file() if name == _PLOTLY else files()[name]).read_bytes()
