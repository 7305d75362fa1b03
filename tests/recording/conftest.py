"""Recordings are made from a playground with a fake engine."""

from tests.play.conftest import engine, playground

__all__ = ["engine", "playground"]
