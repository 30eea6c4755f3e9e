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
    """Have a thread get an exception, which takes the flag back.

    In a thread of its own, which starts no other: until Python 3.11 an exception may go to a thread that its target has
    just started (_kernels.shield). One that arrives in what the collector calls is lost there, so it is sent again.
    """
    thread = threading.Thread(target=_take_back)
    thread.start()
    thread.join()


def _take_back():
    for _ in range(100):
        try:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(threading.get_ident()), ctypes.py_object(_OfOurOwn))
            for _ in range(1000):
                pass
        except _OfOurOwn:
            return
