"""The command line: `treadle run`, `treadle demo`."""
