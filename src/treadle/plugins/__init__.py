"""Treadle inside of other servers. Raises `MissingExtra` without what its own gateway needs."""

from treadle.agents.hosting import check_drivers

check_drivers()
