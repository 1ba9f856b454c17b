"""Calibration of confidences: collecting evidence, sequential temperature scaling, reports."""
