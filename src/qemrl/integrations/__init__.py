"""Estimators of ours in agents of others; each module needs the package that it is named after."""
