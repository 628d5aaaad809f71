# Floods the host with calls while nobody reads the answers: the runner has stopped itself.
# The host waits for neither: the cell ends at its time limit, and the container with it.
#: limit_s=0.5
# %% prints
# > {'a': 1}
print(await echo(a=1))
# %% dies timeout
if os.fork() == 0:
    for number in range(1, 5000):
        forge({"t": "call", "id": number, "name": "echo", "args": {}})
    os._exit(0)
time.sleep(0.05)  # the signal that lets the cell begin may come a little after it
os.kill(os.getpid(), signal.SIGSTOP)
