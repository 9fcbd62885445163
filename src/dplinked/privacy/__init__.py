"""The one door: sensitivities, calibration, noise, and the mechanisms that release."""

from dplinked.privacy import noise

__all__ = ["noise"]
