"""Observability for operators: counters, meters, and the listeners with their connections."""
