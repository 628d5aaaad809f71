"""What the Linux kernel enforces around a container. Standard library only."""
