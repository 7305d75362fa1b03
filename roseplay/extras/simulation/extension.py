"""What the simulation offers."""

from roseplay.extensions import Command, Extension

EXTENSION = Extension(
    commands={
        "plan": Command(
            "roseplay.extras.simulation.plan.command", "find settings for GPUs that are not here, by simulation"
        ),
        "calibrate": Command(
            "roseplay.extras.simulation.calibrate.command", "fit the simulation to measurements of a deployment"
        ),
    },
    gpus=(
        "a100 a100-pcie a100-40gb a30 h100 h100-pcie h200 h20 b200 b300 gb200 gb300 l4 l40s rtx-pro-6000 rtx-4090 mi300x"
        " mi325x arc-b60".split()
    ),  # which gpus.json describes
    hardware="roseplay.extras.simulation.hardware:HARDWARE",
)
