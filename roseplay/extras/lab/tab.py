"""The Lab's tab of the page."""

from __future__ import annotations

from roseplay.extras.lab.controls import LabTab
from roseplay.extras.lab.lab import Lab
from roseplay.extras.lab.report import STATIC
from roseplay.extras.lab.results import MAX_BYTES
from roseplay.extras.lab.routes import lab_router
from roseplay.extras.lab.terms import MEANINGS, PAUSED, TERMS
from roseplay.play.tab import Tab

TAB = Tab(
    name="lab",
    title="Lab",
    busy="the lab is measuring: wait for it, or stop it",
    # It has the results of the previous one.
    make=lambda engine, speed, after: Lab(engine, store=None if after is None else after.store, speed=speed),
    router=lab_router,
    build=lambda: LabTab().wire(),
    max_body=MAX_BYTES,
    static=STATIC,
    entry="address.js",
    styles=("components.css", "tables.css", "lab.css", "points.css", "tone.css"),
    glossary={term: {"what": meaning} for term, meaning in TERMS.items()},
    given={"terms": MEANINGS, "paused": PAUSED},
    about=("The Lab measures two settings with the same traffic.",),
    keys=(("r", "in the Lab: run A and B"), (".", "in the Lab: stop the run")),
)
