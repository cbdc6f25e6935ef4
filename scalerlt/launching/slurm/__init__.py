"""A plan is run by a Slurm cluster."""
