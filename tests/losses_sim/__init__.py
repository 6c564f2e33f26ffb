"""Simulated clusters whose operator gives records up (F6)."""
