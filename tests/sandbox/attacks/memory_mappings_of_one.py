# Has as many mappings as a process may have: each is memory of the kernel, and no process's.
# Without a control group, which counts that, the process is not tolerated.
#: rungs=2,3 limit_s=8
# %% prints
# > 500
C.mmap.restype = ctypes.c_void_p
C.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def split(pieces):
    """One mapping in twice as many: every other page may be read."""
    base = C.mmap(None, ctypes.c_size_t(pieces * 8192), 0, 0x22, -1, ctypes.c_long(0))
    return sum(C.mprotect(base + number * 8192, 4096, 1) == 0 for number in range(pieces))


print(split(500))
# %% dies memory
split(29_000)
time.sleep(4)
print("has 58000 mappings")
