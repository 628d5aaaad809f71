"""Where data is kept that outlives a process."""
