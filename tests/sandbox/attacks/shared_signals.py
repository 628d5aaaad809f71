# Signals processes of the host, of its supervisor and of nobody, by their numbers.
# Each is refused; it signals its own alone.
#: rungs=3
# %% prints
# > -9
pid = os.fork()
if pid == 0:
    signal.pause()
os.kill(pid, signal.SIGKILL)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
# %% prints
# > ['EPERM']
# > ['EPERM', 'ESRCH']
tries = [lambda pid=pid, number=number: os.kill(pid, number)
         for pid in (os.getppid(), HOST_PID, 1) for number in (0, 9, 15, 19, 10)]
tries += [lambda pid=pid: signal.pidfd_send_signal(os.pidfd_open(pid), 9) for pid in (os.getppid(), HOST_PID)]
print(sorted({said(act) for act in tries}))
print(sorted({said(lambda: os.killpg(HOST_PID, 9)), said(lambda: os.kill(4_000_000, 9)), said(lambda: os.kill(HOST_PID, 0))}))
# %% prints
# > DONE
# > here
print(said(lambda: os.kill(-1, signal.SIGKILL)))
print("here")
