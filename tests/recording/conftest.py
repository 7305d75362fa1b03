"""Recordings are made of a playground whose engine only pretends."""

from tests.play.conftest import engine, playground

__all__ = ["engine", "playground"]
