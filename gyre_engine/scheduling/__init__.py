"""Scheduling: the water level, the policies that switch roles, and the order in which groups are trained. Pure functions, no clock."""
