"""Whether a mesh of processes trains as one process does: ``python -m torchdion verify``."""
