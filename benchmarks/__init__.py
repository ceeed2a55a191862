"""What things cost, measured against what they replace, in one run."""
