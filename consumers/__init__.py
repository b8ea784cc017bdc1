"""What acts on, keeps or shows the log."""
