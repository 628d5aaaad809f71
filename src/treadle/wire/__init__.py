"""Pure two-way translation between the wires and `treadle.conversation`. No I/O here."""
