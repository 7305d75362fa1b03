"""What the Lab offers."""

from roseplay.extensions import Command, Extension

EXTENSION = Extension(
    tab="roseplay.extras.lab.tab:TAB",
    commands={"lab": Command("roseplay.extras.lab.command", "compare two settings under the same traffic")},
)
