"""Token shards on disk, made by one builder."""
