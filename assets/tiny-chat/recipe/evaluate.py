"""placeholder"""
from pathlib import Path


def report(out: Path) -> None:
    print("done", out)
