# Fails with a message of many megabytes, a name without end, notes and causes by the thousand.
# The host takes as much of it as it keeps of any failure.
# %% raises ValueError
raise ValueError("short")
# %% raises ValueError
raise ValueError("x" * 20_000_000)
# %% raises nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn
raise type("n" * 1_000_000, (Exception,), {})
# %% raises KeyError
error = KeyError("last")
for number in range(2000):
    following = KeyError(number)
    following.__cause__ = error
    error = following
raise error
# %% raises ValueError
error = ValueError("noted")
error.__notes__ = ["note"] * 50_000
raise error
# %% raises ExceptionGroup
group = ExceptionGroup("g", [ValueError(1)])
for _ in range(200):
    group = ExceptionGroup("g", [group])
raise group
# %% prints
# > fine
print("fine")
