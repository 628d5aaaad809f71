"""Measurements, as ratios in one run. They assert nothing."""
