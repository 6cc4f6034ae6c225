"""What operators see: counters, meters, and the listeners with their connections."""
