"""The event bus: publish and subscribe over ZeroMQ (event-bus.md)."""
