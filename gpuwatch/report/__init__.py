"""What a run was like: one file to hand on, and runs held against each other."""
