"""Starts a program that the kernel kills when this process ends, however it ends.

The parent-death signal (prctl, PR_SET_PDEATHSIG) must be asked for in the child. Code between fork and exec is not safe
in a process with threads, and gRPC has threads. So the child first becomes a small Python program, which asks for the
signal and then becomes the other program; the signal's setting stays.

- If the parent ended before the setting, nobody will ever send the signal: the program looks who its parent is.
- The kernel sends the signal when the *thread* ends that started the child. So a child must be started on a thread that
  lives as long as the process: the event loop's, never one of an executor.
- The setting is lost if the other program is set-user-id or has file capabilities.
"""
from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["ORPHANED", "guarded"]

ORPHANED = 86       # exit status of a child whose parent had ended before it could ask for the signal
# Arguments: number of the parent, program, its arguments. Python ignores two signals; the other program must not.
_PROGRAM = f"""
import ctypes, os, signal, sys
prctl = ctypes.CDLL(None, use_errno=True).prctl
if prctl(1, ctypes.c_ulong(signal.SIGKILL), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
    sys.exit("prctl(PR_SET_PDEATHSIG): " + os.strerror(ctypes.get_errno()))
if os.getppid() != int(sys.argv[1]):
    os._exit({ORPHANED})
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(sys.argv[2] + ": " + error.strerror)
"""


def guarded(command: Sequence[str], parent: int | None = None) -> list[str]:
    """The command to start instead. command[0]: an absolute path. parent: the process that starts it, by default this
    one."""
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid() if parent is None else parent), *command]
