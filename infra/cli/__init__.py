"""`gyre`, the command line: each command is a short file that calls the part that does the work."""
