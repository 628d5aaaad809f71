# Traces PID 1, reads and writes its memory, takes its descriptors.
# Each is refused.
# %% prints
# > DONE
print(said(lambda: os.kill(os.getpid(), 0)))
# %% prints
# > attach EPERM
# > seize EPERM
# > traceme EPERM
# > read EPERM
# > write EPERM
# > kcmp EPERM
# > getfd True
# > madvise True
numbers = {"x86_64": (101, 310, 311, 312), "aarch64": (117, 270, 271, 272)}[os.uname().machine]
ptrace, read, write, kcmp = numbers
attempt("attach", lambda: syscall(ptrace, 16, 1, 0, 0))
attempt("seize", lambda: syscall(ptrace, 0x4206, 1, 0, 0))
attempt("traceme", lambda: syscall(ptrace, 0, 0, 0, 0))
buffer = ctypes.create_string_buffer(8)
part = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
attempt("read", lambda: syscall(read, 1, part, 1, part, 1, 0))
attempt("write", lambda: syscall(write, 1, part, 1, part, 1, 0))
attempt("kcmp", lambda: syscall(kcmp, 1, os.getpid(), 0, 0, 0))
handle = os.pidfd_open(1)
print("getfd", said(lambda: syscall(438, handle, 3, 0)) in ("EPERM", "ENOSYS"))
print("madvise", said(lambda: syscall(440, handle, part, 1, 21, 0)) in ("EPERM", "ENOSYS"))
