"""The comparison's sentences: the failure message, and its parts.

message     the whole message of a comparison that is not a pass
doubts      the rows of an inconclusive verdict
proposal    the rows of layouts and declarations that are missing or wrong
mismatch    the numbers of the element that differs most
first_line  the finding that leads, in one line
"""

from __future__ import annotations

from pytest_trainsafe.judges.compare.text.first_line import first_line
from pytest_trainsafe.judges.compare.text.message import message_of as message

__all__ = ["first_line", "message"]
