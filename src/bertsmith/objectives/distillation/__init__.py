"""Learning from a larger model: what a student is compared with its teacher by, a file each, and the objective."""
