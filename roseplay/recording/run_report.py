"""A run as one HTML page: what it showed, charts, statistics and settings."""

from __future__ import annotations

from html import escape

from roseplay.formats.numbers import number_text, setting_text
from roseplay.formats.report_page import charts as as_html
from roseplay.formats.report_page import heading, picture, report_page, table
from roseplay.formats.segments import as_html as in_html
from roseplay.recording import charts
from roseplay.recording.reader import Recording
from roseplay.recording.recorded_run import RecordedRun, changes_text
from roseplay.recording.run_statistics import run_statistics
from roseplay.traffic.pair import named_value

_CHARTS = (
    ("Inter-token latency", "ms, one point per token", charts.itl),
    ("Tokens per step", "width is time", charts.step_tokens),
    ("KV blocks", "after each step; a diamond is a preemption", charts.kv_blocks),
    ("Time to first token", "share of requests", charts.ttft),
)
_OF_STEPS = (charts.step_tokens, charts.kv_blocks)
# Properties that are not one value each.
_NESTED = ("choices", "eos_token_ids", "sampling_defaults", "server_settings", "knob_limits")
_UNLIMITED = ("max_step_tokens",)  # engine properties whose null means no limit


def run_report(recording: Recording) -> bytes:
    """Returns the page in UTF-8."""
    run, header = RecordedRun(recording), recording.header
    statistics = [(row.name, f"{number_text(row.value)} {row.unit}", row.meaning) for row in run_statistics(run)]
    parts = [f"<h1>A run of roseplay</h1><p>{escape(_about(run))}</p>", *_shown(recording)]
    if run.changes:
        changes = [
            (str(number), f"{(t - run.start) / 1000:.2f} s, step {step}", escape(changes_text(change)))
            for number, (t, step, change) in enumerate(run.changes, 1)
        ]
        parts += [heading("Knob changes", "numbered in the charts"), table(changes, notes=True)]
    drawn = [chart for chart in _CHARTS if "steps" not in run.absent or chart[2] not in _OF_STEPS]
    for (title, sub, _), chart in zip(drawn, as_html(draw(run) for *_, draw in drawn), strict=True):
        parts += [heading(title, sub), chart]
    parts.append(heading("Figures", "definitions beside them"))
    parts.append(table([[escape(cell) for cell in row] for row in statistics], notes=True))
    environment = {**header["info"], **(header.get("environment") or {}), **dict.fromkeys(_NESTED)}
    details = {name: setting_text(value, "∞" if name in _UNLIMITED else "–") for name, value in environment.items()}
    defaults = [f"{name} {setting_text(value)}" for name, value in recording.info.sampling_defaults.items()]
    details["sampling_defaults"] = ", ".join(defaults) or "–"
    details["eos_token_ids"] = ", ".join(map(str, recording.info.eos_token_ids)) or "–"
    del details["choices"], details["server_settings"], details["knob_limits"]
    choices: dict[str, list[str]] = {}
    for choice in recording.info.choices:  # two may be about one part
        choices.setdefault(choice.part, []).append(": ".join(filter(None, (choice.chosen, choice.why))))
    details |= {part: "; ".join(texts) for part, texts in choices.items()}
    parts += ['<div class="two"><div>', heading("Settings at the start"), _settings(run), "</div>"]
    if recording.info.server:  # it does not report the others
        details = {name: value for name, value in details.items() if value not in ("0", "", "–", "∞")}
    pairs = [(escape(name), escape(setting_text(value))) for name, value in details.items()]
    parts += ["<div>", heading("Model and environment"), table(pairs), "</div></div>"]
    return report_page("roseplay run", parts).encode("utf-8", "replace")


def _shown(recording: Recording) -> list[str]:
    """Returns the newest picture of two bursts, or what the page said last."""
    if pairs := [frame["pair"] for frame in recording.frames if "pair" in frame]:
        return [f"<p>{in_html(pairs[-1]['sentence'])}</p>", picture(pairs[-1])]
    stories = [story["lines"] for frame in recording.frames if (story := frame.get("story"))]
    return [f"<p>{in_html(line)}</p>" for line in (stories[-1] if stories else [])]


def _about(run: RecordedRun) -> str:
    recording, info = run.recording, run.recording.info
    slowed = sum(until - since for since, until, _ in run.slowed()) / 1000
    text = f"{recording.name} · {info.model} on {info.device}, {info.dtype} · recorded {recording.header.get('created', '')}"
    text += f" · times are simulated: {info.simulated}" if info.simulated else ""
    text += f" · {slowed:.1f} s of it in slow motion, shaded in the charts" if slowed else ""
    return f"{text} · the file was cut off, its last line is left out" if recording.cut else text


def _settings(run: RecordedRun) -> str:
    """Returns the engine's settings at the start; another server's by its own names, or why they are not known."""
    recording = run.recording
    reason = recording.header["snapshot"].get("absent", {}).get("knobs")
    values = recording.info.server_settings if reason else recording.header["knobs"]
    if not values:
        return f"<p>Not known: {escape(reason)}.</p>"
    named = ((name, *named_value(name, value)) for name, value in values.items())
    return table(
        [
            (f'{escape(label) if label != name else ""} <span class="quiet">{escape(name)}</span>', escape(it))
            for name, label, it in named
        ]
    )
