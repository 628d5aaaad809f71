# Changes limits, priorities and processors of processes of the host, where it can see their numbers.
# Each is refused; what it does to itself is its own affair.
#: rungs=3
# %% prints
# > DONE DONE DONE
import resource

print(
    said(lambda: resource.prlimit(0, resource.RLIMIT_NOFILE, (60, 60))),
    said(lambda: os.setpriority(os.PRIO_PROCESS, 0, 1)),
    said(lambda: os.sched_setaffinity(0, os.sched_getaffinity(0))),
)
# %% prints
# > ['EPERM']
ioprio = {"x86_64": 251, "aarch64": 30}[os.uname().machine]
tries = []
for pid in (os.getppid(), HOST_PID, 1):
    tries += [
        lambda pid=pid: resource.prlimit(pid, resource.RLIMIT_CPU),
        lambda pid=pid: resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1)),
        lambda pid=pid: os.setpriority(os.PRIO_PROCESS, pid, 19),
        lambda pid=pid: os.setpriority(os.PRIO_PGRP, pid, 19),
        lambda pid=pid: os.setpriority(os.PRIO_USER, 0, 19),
        lambda pid=pid: os.sched_setaffinity(pid, {0}),
        lambda pid=pid: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
        lambda pid=pid: os.sched_setparam(pid, os.sched_param(0)),
        lambda pid=pid: syscall(ioprio, 1, pid, 3 << 13),
        lambda pid=pid: syscall(ioprio, 3, 0, 3 << 13),
    ]
print(sorted({said(act) for act in tries}))
