"""The host's end of the bridge to the code in a container. Nothing that comes over it is trusted."""
