"""The experiments of the papers that Unbroken is built on, run on the real system."""
