# Ends its cell by an exit with odd values.
# The cell is over, and says with what; the container goes on.
# %% raises SystemExit
sys.exit()
# %% raises SystemExit
sys.exit(300)
# %% raises SystemExit
sys.exit("why")
# %% raises SystemExit
sys.exit({"a": object()})
# %% raises KeyboardInterrupt
raise KeyboardInterrupt
# %% raises GeneratorExit
raise GeneratorExit
# %% raises CancelledError
raise __import__("asyncio").CancelledError
# %% prints
# > fine
print("fine")
