"""Faust stream processors: events to derived events."""
