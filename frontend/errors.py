"""The one error that the frontend raises for a model it cannot take."""

from __future__ import annotations


class FrontendError(Exception):
    """A model, or a use of it, that is refused: what was found, and what to do about it."""
