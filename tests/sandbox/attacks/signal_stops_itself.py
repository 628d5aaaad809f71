# Stops its own process, so that it cannot be interrupted.
# The container is killed a moment after the time limit.
#: limit_s=0.5
# %% stopped
while True:
    pass
# %% dies timeout
time.sleep(0.05)  # the signal that lets the cell begin may come a little after it
os.kill(os.getpid(), signal.SIGSTOP)
