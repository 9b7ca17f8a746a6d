"""Facade: the old import path of `spark.source.watch`, kept because notebooks use it."""

import warnings

from spark.source.watch import OBSERVATION, Lag, LagListener, observe

__all__ = ["OBSERVATION", "Lag", "LagListener", "observe"]

warnings.warn("spark.watch has moved to spark.source.watch", DeprecationWarning, stacklevel=2)
