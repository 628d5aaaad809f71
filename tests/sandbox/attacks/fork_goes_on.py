# A forked child goes on with the cell as if it were the runner, and calls tools.
# It ends with the code, as if it were a process of its own; what it would say to the host is not said.
# %% prints
# > 0
print(child(lambda: None))
# %% prints
# > child
# > parent 0
pid = os.fork()
if pid == 0:
    print("child")
else:
    print("parent", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
# %% prints
# > this is a fork of the process that the code began in: tools are called there
# > {'a': 1} 0
pid = os.fork()
if pid == 0:
    try:
        await echo(a=2)
    except RuntimeError as error:
        print(error)
else:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(await echo(a=1), status)
# %% prints
# > 1
pid = os.fork()
if pid == 0:
    sys.stderr = None
    os.close(2)
    raise ValueError
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
# %% prints
# > 3
pid = os.fork()
if pid == 0:
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
# %% prints
# > fine
print("fine")
