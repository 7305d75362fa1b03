"""What serving replicas on Ray offers."""

from roseplay.extensions import Extension

EXTENSION = Extension(serving="roseplay.extras.ray.serving:REPLICAS")
