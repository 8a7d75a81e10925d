"""The fixture that users get by installing the package; these tests also run where it is not installed."""

from __future__ import annotations

from unbroken.testing.plugin import unbroken_cluster as unbroken_cluster
