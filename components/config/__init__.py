"""The typed schema of params.yaml and its loader."""
