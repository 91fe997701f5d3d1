"""An exception of a rank as the text that a user should read.  Called by the rank.

Nobody debugs their program by our frames: those before it say how a rank starts, and where the
package itself complains of a program, the program's last line is the place to look.
"""

from __future__ import annotations

import contextlib
import os
import traceback

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
#: Stages that run inside a rank, or between it and the program.
_OURS = tuple(_PACKAGE + stage + os.sep for stage in ("launch", "record", "align", "trace"))
_BETWEEN = (*_OURS, "<frozen", contextlib.__file__)


def error_text(error: BaseException) -> str:
    """The traceback of an error, from the program's first frame.

    Of an error that this package raises about the program, only the program's frames: its
    message is told beside them.  The whole where no frame is the program's.
    """
    told = traceback.TracebackException.from_exception(error)
    if type(error).__module__.partition(".")[0] == __name__.partition(".")[0]:
        frames = [frame for frame in told.stack if not frame.filename.startswith(_BETWEEN)]
        if frames:
            return "".join(traceback.StackSummary.from_list(frames).format())
    while len(told.stack) > 1 and told.stack[0].filename.startswith((*_OURS, "<frozen")):
        told.stack.pop(0)
    return "".join(told.format())
