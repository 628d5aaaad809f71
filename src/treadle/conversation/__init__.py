"""Pure values: blocks, messages, history, events, deltas and usage. Nothing here does I/O."""
