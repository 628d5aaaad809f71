# Has as many mappings as a process may have, in many processes: each is memory of the kernel, and takes long to
# look at. The container is ended, with a control group by the kernel, and elsewhere for the mappings.
#: memory_mib=128 limit_s=10
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
for _ in range(20):
    if os.fork() == 0:
        time.sleep(8)
        os._exit(0)
time.sleep(4)
print("have 1.2 million mappings")
