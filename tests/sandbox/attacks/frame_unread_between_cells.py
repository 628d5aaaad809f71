# Fills the bridge with answers that nobody reads, and says that the cell is done.
# The next cell cannot even be sent: it ends at its time limit, and the container with it.
#: limit_s=0.5
# %% prints
# > 1048576
print(len(await big()))
# %% prints
cell, runner = this_cell(), os.getpid()
if os.fork() == 0:
    os.kill(runner, signal.SIGSTOP)
    for number in range(1000, 1003):
        forge({"t": "call", "id": number, "name": "big", "args": {}})
    time.sleep(0.3)
    forge({"t": "done", "id": cell, "error": None})
    while True:
        os.kill(runner, signal.SIGSTOP)
time.sleep(10)
# %% dies timeout
print("the next one")
