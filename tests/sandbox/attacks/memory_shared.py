# Takes shared anonymous memory, which is neither private to a process nor a file.
# All of it counts: the container is killed at its limit.
#: memory_mib=192 limit_s=8
# %% prints
# > 50
import mmap

print(len(mmap.mmap(-1, 50 << 20)) >> 20)
# %% dies memory: more than 192 MiB
for _ in range(2):
    if os.fork() == 0:
        kept = mmap.mmap(-1, 200 << 20)
        for at in range(0, len(kept), 4096):
            kept[at] = 1
        time.sleep(10)
        os._exit(0)
time.sleep(3)
print("held 400 MiB")
