"""Found by Spark through its name: makes ``spark.readStream.format("unbroken")`` work after installation."""

from unbroken.spark.source import UnbrokenSource as DefaultSource

__all__ = ["DefaultSource"]
