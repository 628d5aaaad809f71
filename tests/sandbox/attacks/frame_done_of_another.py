# Says that another cell is done than the one that runs.
# The container is killed for it.
# %% prints
# > {'a': 1}
print(await echo(a=1))
# %% dies violation: the end of cell 424242
forge({"t": "done", "id": 424242, "error": None})
time.sleep(10)
# %% new dies violation: the end of cell 1,
forge({"t": "done", "id": this_cell() - 1, "error": None})
time.sleep(10)
