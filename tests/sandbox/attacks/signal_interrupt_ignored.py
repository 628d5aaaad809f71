# Disarms the signal that interrupts a cell, and computes on.
# The container is killed a moment after the time limit.
#: limit_s=0.5
# %% stopped
while True:
    pass
# %% dies timeout
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal = None
while True:
    pass
# %% new dies timeout
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
while True:
    pass
