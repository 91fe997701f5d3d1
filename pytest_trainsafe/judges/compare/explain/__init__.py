"""Collects the evidence on a wrong tensor and describes it."""
