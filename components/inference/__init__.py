"""Generation at any depth."""
