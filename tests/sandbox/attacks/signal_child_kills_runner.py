# A child kills the process that runs the cells.
# The container is gone, and says why.
# %% prints
# > -15
pid = os.fork()
if pid == 0:
    time.sleep(10)
os.kill(pid, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
# %% dies exit: status -9
if os.fork() == 0:
    os.kill(os.getppid(), signal.SIGKILL)
time.sleep(10)
