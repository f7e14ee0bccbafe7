"""Measures the interface by itself, with an engine that only recites."""
