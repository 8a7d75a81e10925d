"""Notices in English: the table of all kinds, and what is made of it."""

from unbroken.observe.notices.rendering import TABLE, TOPICS, line_of, text_of

__all__ = ["TABLE", "TOPICS", "line_of", "text_of"]
