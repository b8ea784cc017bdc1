"""The core's optimizer: Megatron's Adam over the flat weights, its schedules, its state in shards and on disk."""
