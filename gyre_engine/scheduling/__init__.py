"""Scheduling: the water level, the elastic policy, and the order in which groups are trained. Pure functions, no clock."""
