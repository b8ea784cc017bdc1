"""The policy as Megatron-core computes it over packed trees: shape and weights, attention, likelihoods, one replica of one process."""
