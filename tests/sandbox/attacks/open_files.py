# Opens files until no more can be opened, and keeps them.
# The next cell finds as many closed as it closes; the container goes on.
#: open_files=40
# %% prints
# > DONE
print(said(lambda: open("/workspace/a", "w").close()))
# %% prints
# > EMFILE
kept = []


def more():
    while True:
        kept.append(os.open("/dev/null", os.O_RDONLY))


print(said(more))
# %% prints
# > {'a': 1}
for each in kept:
    os.close(each)
print(await echo(a=1))
