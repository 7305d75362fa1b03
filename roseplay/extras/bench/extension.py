"""What the benchmarks offer."""

from roseplay.extensions import Command, Extension

EXTENSION = Extension(
    commands={
        "bench": Command("roseplay.extras.bench.main", "measure the engine"),
        "doctor": Command(
            "roseplay.extras.bench.doctor.main", "show what this machine has, what the engine uses, and what is missing"
        ),
    },
)
