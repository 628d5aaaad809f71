# Takes from PID 1, which has the same user, what it needs: descriptors and memory.
# Either it is refused, or the container ends; it never goes on without its first process at work.
#: limit_s=3
# %% prints
# > DONE
import resource

print(said(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))))
# %% dies exit
try:
    resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))
except PermissionError:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(10)
# %% new dies exit
import resource

try:
    resource.prlimit(1, resource.RLIMIT_AS, (4096, 4096))
    resource.prlimit(1, resource.RLIMIT_DATA, (4096, 4096))
    resource.prlimit(1, resource.RLIMIT_STACK, (4096, 4096))
    resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))
except PermissionError:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(10)
