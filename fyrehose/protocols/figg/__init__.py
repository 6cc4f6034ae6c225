"""Figg: topics with offsets over TCP; publish with a sliding window, subscribe from any offset."""
