"""The paper's figures, tables and claims, each as something that can be run."""
