# Calls itself without end, in Python and below it.
# The first is an error, the second the end of the container.
# %% raises RecursionError
def again():
    again()


again()
# %% prints
# > RecursionError
print(said(lambda: json.loads("[" * 1_000_000)))


# %% prints
# > True
def crash():
    sys.setrecursionlimit(10**9)
    threading.stack_size(1 << 20)
    value = []
    for _ in range(10**6):
        value = [value]
    del value
    value = ()
    for _ in range(10**6):
        value = (value,)
    hash(value)


print(child(crash) in (0, -signal.SIGSEGV))
