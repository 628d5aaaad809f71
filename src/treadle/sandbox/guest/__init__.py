"""What runs inside a container. Standard library only."""
