"""A cache of the Hugging Face hub, for tests to put models into."""

from __future__ import annotations

from pathlib import Path


class Hub:
    """The cache in a folder, which need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, repository: str) -> Path:
        """Add a repository with one snapshot; returns the snapshot's folder, which is empty."""
        folder = self.path / f"models--{repository.replace('/', '--')}"
        snapshot = folder / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(snapshot.name)
        return snapshot
