"""The loop: ask the model, run its tools, until it is done or has to wait for somebody."""
