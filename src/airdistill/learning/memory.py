"""Memory that is asked for again each round should not go back to the system in between."""

from __future__ import annotations

import ctypes
import logging

logger = logging.getLogger(__name__)
# From malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> None:
    """Tells the C library to hold on to what a round frees, in one pool for all threads.

    A round's activations are gigabytes in large blocks, which the library would hand back and fetch anew, page by page:
    on two cores that took as long as the arithmetic. Other C libraries have no such switch and are left as they are.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError) as error:
        logger.debug("freed memory goes back to the system: %s", error)
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
