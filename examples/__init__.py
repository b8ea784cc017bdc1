"""Runnable task sets and configurations."""
