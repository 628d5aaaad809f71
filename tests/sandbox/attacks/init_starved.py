# Gives PID 1 the lowest rank and one processor, keeps that busy, and takes memory meanwhile.
# The memory is bounded all the same.
#: memory_mib=192 limit_s=8
# %% prints
# > 100
print(len(bytearray(100 << 20)) >> 20)
# %% dies memory: more than 192 MiB
processor = min(os.sched_getaffinity(0))
for lower in (
    lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    lambda: os.sched_setaffinity(1, {processor}),
    lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
):
    said(lower)
end = time.monotonic() + 6
for _ in range(12):
    if os.fork() == 0:
        os.sched_setaffinity(0, {processor})
        while time.monotonic() < end - 5:
            pass
        kept = bytearray(40 << 20)
        while time.monotonic() < end:
            kept[::4096] = b"1" * len(kept[::4096])
        os._exit(0)
time.sleep(10)
