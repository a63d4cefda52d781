"""Checkpoints of Hugging Face transformers, read as a model of this project and written back."""
