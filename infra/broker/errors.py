"""What can go wrong with a local broker."""


class BrokerError(RuntimeError):
    """The local broker cannot be had; the text names the cause and the remedy."""
