# Looks for processes of others by their numbers.
# There are PID 1 and its own.
# %% prints
# > DONE
pid = os.fork()
if pid == 0:
    signal.pause()
print(said(lambda: os.kill(pid, 0)))


# %% prints
# 3% skipped
# > [1, 2, 3]
# > ESRCH
def there(number):
    return said(lambda: os.kill(number, 0)) != "ESRCH"


print([number for number in range(1, 40_000) if there(number)] if pid == 3 else pid)
print(said(lambda: os.pidfd_open(4_000_000)))
# %% prints
# 3> DONE
# 3> DONE
# > DONE
# > ESRCH
print(said(lambda: os.kill(-1, signal.SIGKILL)))
os.waitpid(pid, 0)
print(said(lambda: os.kill(-1, signal.SIGKILL)))
