"""The HTTP listener: publish and read with curl, or with whatever speaks HTTP."""
