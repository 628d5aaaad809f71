# Ends its cell by an exit whose value cannot be shown, or is longer than a frame.
# The cell is over; the container goes on.
# %% raises SystemExit
sys.exit("why")


# %% raises SystemExit
class Broken:
    def __str__(self):
        raise ValueError


sys.exit(Broken())
# %% raises SystemExit
sys.exit(10**5000)
# %% raises SystemExit
sys.exit("x" * 5_000_000)
# %% prints
# > fine
print("fine")
