"""Code that a model wrote, and the tools that it calls."""
