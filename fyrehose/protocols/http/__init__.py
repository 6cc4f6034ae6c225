"""The HTTP door: publish and read with curl, or with whatever speaks HTTP."""
