# A forked child goes on with the cell as if it were the runner, and says before that one that it is done.
# The cell is over then; when the runner says so too, the next one is running, and the container is killed.
# %% prints
# > 0
print(child(lambda: None))
# %% prints
# > child
runner = os.getpid()
if os.fork():
    time.sleep(0.3)
    print("parent")
else:
    print("child")
# %% dies violation: which is not running
time.sleep(1)
