"""The colours of a run's report: the light theme of the page (``tokens.css``; a test keeps them equal)."""

from __future__ import annotations

from collections.abc import Mapping

COLOURS: Mapping[str, str] = {
    "surface": "#FFFFFF",
    "raised": "#FFFFFF",
    "line": "#DFE3E8",
    "line2": "#C9CFD7",
    "grid": "#EDEFF2",
    "ink": "#14181F",
    "ink3": "#626C7A",
    "rose": "#C2184F",
    "rosewash": "#FBEAF0",
    "prompt": "#3D4656",
    "decode": "#A9B3C1",
    "shared": "#14181F",
    "cached": "#C3CAD3",
    "free": "#F0F2F4",
    "c0": "#0B4FA8",
    "c1": "#C96600",
    "c2": "#12805E",
    "c3": "#7A2E73",
    "c4": "#3A9BDD",
    "c5": "#8C2F0A",
    "c6": "#A5973A",
    "c7": "#74839A",
}
