"""Which rank loads what: ranks, meshes, and the sequences that ranks share."""
