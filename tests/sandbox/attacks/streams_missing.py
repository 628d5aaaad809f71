# Takes away its standard streams, or closes them, and fails.
# The failure is told all the same, and the container goes on.
# %% raises ValueError
raise ValueError
# %% raises ZeroDivisionError
kept = sys.stdout, sys.stderr
sys.stdout = sys.stderr = None
print("lost")
1 / 0
# %% prints
# > fine
sys.stdout, sys.stderr = kept
print("fine")
# %% raises ZeroDivisionError
sys.stderr.close()
1 / 0
