# What attacks have in common: it is run in a container before the first cell.
import ctypes, errno, json, os, re, select, signal, socket, struct, subprocess, sys, threading, time

C = ctypes.CDLL(None, use_errno=True)


def said(act):
    """What comes of `act`: DONE, or the name of the error."""
    try:
        act()
    except OSError as error:
        return errno.errorcode.get(error.errno) or type(error).__name__
    except Exception as error:
        return type(error).__name__
    return "DONE"


def attempt(name, act):
    print(name, said(act))


def syscall(number, *arguments):
    """A system call by its number."""
    taken = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    got = C.syscall(ctypes.c_long(number), *taken)
    if got < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return got


def raw(data):
    """Write bytes to the bridge, past the guest's own end of it."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(3, rest) :]
        except BlockingIOError:
            select.select([], [3], [])


def forge(message):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    raw(struct.pack(">I", len(body)) + body)


def child(act):
    """Run `act` in a process of its own; how that ended."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def this_cell():
    return int(re.search(r"\d+", sys._getframe(1).f_code.co_filename)[0])
