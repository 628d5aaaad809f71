# Keeps files that have neither a name nor a descriptor, but are mapped.
# Each counts as the largest that there can be.
#: rungs=3 limit_s=8
# %% prints
# > 1
import mmap

with open("/workspace/mapped", "w+b") as file:
    file.write(b"x" * 4096)
    file.flush()
    print(len(mmap.mmap(file.fileno(), 4096)[:1]))
# %% dies disk: more than 48 MiB
C.mmap.restype = ctypes.c_void_p
for number in range(5):
    with open(f"/workspace/{number}", "w+b") as file:
        file.write(bytes(8 << 20))
        file.flush()
        place = C.mmap(None, ctypes.c_size_t(4096), 1, 1, file.fileno(), ctypes.c_long(0))  # Python's own has a descriptor
        assert place not in (None, ctypes.c_void_p(-1).value)
    os.unlink(f"/workspace/{number}")
time.sleep(5)
