"""The doctor's findings, as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from roseplay.core.info import EngineInfo
from roseplay.extras.bench.doctor.answers import Check
from roseplay.extras.bench.doctor.machine import Device

_WIDTH, _LABEL = 118, 30


@dataclass(frozen=True)
class Findings:
    """The findings; see ``machine``, ``EngineInfo`` and ``Check``. ``missing`` lists possible speed-ups."""

    versions: Mapping[str, str | None]
    cpu_features: list[str]
    page_bytes: int
    devices: list[Device]
    engine: EngineInfo
    checks: list[Check]
    missing: list[str]

    @property
    def ok(self) -> bool:
        """Whether all answers were right."""
        return all(check.ok for check in self.checks)

    def document(self) -> dict[str, Any]:
        """Returns everything as values for JSON, in bytes and operations a second, and seconds."""
        return asdict(self)

    def text(self) -> str:
        versions = ", ".join(f"{name} {version or '(not installed)'}" for name, version in self.versions.items())
        lines = [*_entry("versions", versions), ""]
        for device in self.devices:
            rates = " and ".join(f"{_flops(rate)} in {dtype}" for dtype, rate in device.matmul_flops.items())
            verb = "reads" if device.device == "cpu" else "copies"
            speed = f"{verb} {device.bandwidth / 1e9:.3g} GB/s, multiplies at {rates}"
            lines += _entry(device.device, f"{device.name}; {speed}")
            if device.device == "cpu":
                lines += _entry("", f"instructions: {', '.join(self.cpu_features) or 'none that the kernels know'}")
                lines += _entry("", f"weights and KV blocks in pages of {self.page_bytes // 1024:,} kB")
        if all(device.device == "cpu" for device in self.devices):
            lines += _entry("cuda", "no GPU that torch can use")
        info = self.engine
        lines += ["", f"{info.model} on {info.device} in {info.dtype}, {info.threads} threads:"]
        for choice in info.choices:
            lines += _entry(f"  {choice.part}", choice.chosen + (f" ({choice.why})" if choice.why else ""))
        lines += ["", "answers of the embedded model:"]
        for check in self.checks:
            lines += _entry(f"  {check.device}, {check.dtype}", str(check))
        lines += ["", *_entry("missing", self.missing[0] if self.missing else "nothing")]
        for reason in self.missing[1:]:
            lines += _entry("", reason)
        return "\n".join(lines)


def _flops(rate: float) -> str:
    return f"{rate / 1e12:.3g} TFLOPS" if rate >= 1e12 else f"{rate / 1e9:.3g} GFLOPS"


def _entry(label: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{label:<{_LABEL}}", subsequent_indent=" " * _LABEL)
