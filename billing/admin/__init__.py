"""The administration of money: the books, what came in, corrections by hand. A module a subject."""

from billing.admin import adjustments, books, deposits, statements

__all__ = ["adjustments", "books", "deposits", "statements"]
