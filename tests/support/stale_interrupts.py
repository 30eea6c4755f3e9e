"""What an exception from outside leaves in the interpreter if its thread ends before it arrives.

CPython 3.11 keeps one flag for all threads, which the thread takes back that gets the exception. If that thread has
ended, the flag stays, and the next function that runs under `sys.setprofile` or `sys.settrace` never begins: ceval.c
looks at the flag at its first instruction, and begins with that instruction again.
"""
import ctypes
import threading


class _OfOurOwn(BaseException):
    pass


def take_back_flag():
    """Have this thread get an exception, which takes the flag back.

    One that arrives in what the collector calls is lost there, so it is sent again.
    """
    for _ in range(100):
        try:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(threading.get_ident()), ctypes.py_object(_OfOurOwn))
            for _ in range(1000):
                pass
        except _OfOurOwn:
            return
