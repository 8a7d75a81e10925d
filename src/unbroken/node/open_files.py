"""How many files a process may have open: connections of strangers must not use them up."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

MOST_FILES = 65_536
"""Enough for any node. Some programs close every file up to the limit one by one when they start another."""

FEW_FILES = 4_096
"""A hard limit below this is worth a warning."""


def raise_open_files(most: int = MOST_FILES) -> int:
    """Raise the soft limit of open files of this process as far as the hard limit allows; the limit from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < reachable:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
            soft = reachable
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays %d: %s", soft, error)
    if soft != resource.RLIM_INFINITY and soft < FEW_FILES:
        log.warning("this process may open only %d files. Raise its limit (ulimit -n, LimitNOFILE).", soft)
    return soft
