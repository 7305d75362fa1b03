"""Types of the values in measurements and calibrations, with limits: whatever is computed from them stays finite."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Name = Annotated[str, Field(strict=True, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,200}$")]  # on one line
Tokens = Annotated[int, Field(strict=True, ge=0, le=10**9)]
Streams = Annotated[int, Field(strict=True, ge=1, le=10**6)]
Seconds = Annotated[float, Field(strict=True, ge=1e-9, le=1e6)]
Overhead = Annotated[float, Field(strict=True, ge=1e-9, le=100)]  # seconds of a step, layer, sequence or request
Share = Annotated[float, Field(strict=True, ge=1e-3, le=1e3)]  # of a rate; a fitted one may exceed 1
Rate = Annotated[float, Field(strict=True, ge=1e-4, le=1e6)]  # in units of 10^9 or 10^12 a second
GiB = Annotated[float, Field(strict=True, ge=1e-3, le=1e6)]
