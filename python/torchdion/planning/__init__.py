"""What a step costs on a mesh, computed without one: see :func:`torchdion.plan`."""
