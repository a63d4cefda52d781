"""Pure Python, PyTorch and Arrow: everything the study is about. Imports no workflow tool."""
