"""Tools: how a Python function is told to a model, checked and run."""
