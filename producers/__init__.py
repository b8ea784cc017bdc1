"""What happens outside becomes events: the proxy, the runner, the cells."""
