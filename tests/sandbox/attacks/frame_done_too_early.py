# Says itself that its cell is done, and goes on.
# It is frozen where it is; when its true end comes, the next cell is running, and the container is killed.
# %% prints
# > fine
print("fine")
# %% prints
# > before
print("before")
forge({"t": "done", "id": this_cell(), "error": None})
time.sleep(0.2)
print("after")
# %% dies violation: which is not running
print("the next one")
