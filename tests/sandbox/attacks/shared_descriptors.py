# Looks for descriptors that were left open by those that it was forked from.
# There are nothing to read, two pipes to write to, the bridge; and those of its own event loop.
#: rungs=3
# %% prints
# > [0, 1, 2, 3]
def kinds():
    import stat

    for fd in range(64):
        try:
            yield fd, stat.S_IFMT(os.fstat(fd).st_mode)
        except OSError:
            continue


print([fd for fd, _ in kinds()][:4])
# %% prints
# > True
# > []
import stat

found = dict(kinds())
print(
    stat.S_ISCHR(found[0]), *(["?"] if [found[1], found[2], found[3]] != [stat.S_IFIFO] * 2 + [stat.S_IFSOCK] else [])
)
# an event loop has one for its poll, which is of no kind, and a pair of sockets
print([(fd, kind) for fd, kind in found.items() if fd > 3 and kind not in (0, stat.S_IFSOCK)])
