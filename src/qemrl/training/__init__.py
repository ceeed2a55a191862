"""What a run of training needs: its directory and its checkpoints."""
