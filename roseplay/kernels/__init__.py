"""What ``roseplay.model`` computes, computed faster: kernels for CPUs (``cpu``) and for GPUs (``cuda``)."""
