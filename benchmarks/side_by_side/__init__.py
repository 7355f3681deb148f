"""Measurements in turn, A B A B, so that a noisy machine is noisy for all."""
