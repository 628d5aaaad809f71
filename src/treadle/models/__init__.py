"""Models: clients of the wires, and the table that says which one a name means."""
