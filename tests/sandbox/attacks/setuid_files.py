# Makes files that others would run as their owner or with its group: a way out, where a folder is the host's.
# No mode may have these bits, however a file comes by it. Where a change of mode is pretended, nothing has them.
# %% prints
# > DONE 0o755
# > DONE 0o700
import stat


def mode(path):
    return oct(stat.S_IMODE(os.stat(path).st_mode))


os.umask(0o022)
os.close(os.open("/workspace/program", os.O_CREAT | os.O_WRONLY, 0o755))
print(said(lambda: os.chmod("/workspace/program", 0o755)), mode("/workspace/program"))
print(said(lambda: os.mkdir("/workspace/folder", 0o700)), mode("/workspace/folder"))
# %% prints
# > ['EPERM']
# > []
# 3b> ['DONE']
# 3b> []
program, here = os.open("/workspace/program", os.O_RDONLY), os.open("/workspace", os.O_RDONLY)
results = set()
for bits in (0o4755, 0o2755, 0o6777, 0o4000):
    attempts = [
        lambda: os.chmod("/workspace/program", bits),
        lambda: os.chmod("program", bits, dir_fd=here),
        lambda: os.fchmod(program, bits),
        lambda: os.chmod("/workspace/folder", bits),
    ]
    results.update(map(said, attempts))


def marked():
    return [each.name for each in os.scandir("/workspace") if each.stat().st_mode & 0o6000]


print(sorted(results))
print(marked())
# %% prints
# > ['EPERM']
# > []
results = set()
for number, bits in enumerate((0o4755, 0o2755, 0o6777, 0o4000)):
    attempts = [
        lambda: os.open(f"/workspace/a{number}", os.O_CREAT | os.O_WRONLY, bits),
        lambda: os.open(f"b{number}", os.O_CREAT | os.O_RDWR | os.O_EXCL, bits, dir_fd=here),
        lambda: os.open("/workspace", os.O_TMPFILE | os.O_RDWR, bits),
        lambda: os.mkdir(f"/workspace/c{number}", bits),
        lambda: os.mkdir(f"d{number}", bits, dir_fd=here),
    ]
    results.update(map(said, attempts))
print(sorted(results))
print(marked())


# %% prints
# > []
# by the numbers of the calls, past the library
def text(path):
    return ctypes.c_char_p(path.encode())


there = "/workspace"
how = ctypes.create_string_buffer(struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, 0o4755, 0))
calls = {
    "x86_64": [
        (2, text(f"{there}/e"), os.O_CREAT | os.O_WRONLY, 0o4755),  # open
        (2, text(there), os.O_TMPFILE | os.O_WRONLY, 0o4755),
        (85, text(f"{there}/f"), 0o4755),  # creat
        (83, text(f"{there}/g"), 0o2755),  # mkdir
        (90, text(f"{there}/program"), 1 << 32 | 0o4755),  # chmod; the kernel looks at the lower half
        (133, text(f"{there}/h"), 0o104755, 0),  # mknod
    ],
    "aarch64": [(33, -100, text(f"{there}/h"), 0o104755, 0)],  # mknodat
}[os.uname().machine]
calls += [
    (452, -100, text(f"{there}/program"), 0o4755, 0),  # fchmodat2
    (437, -100, text(f"{there}/i"), how, 24),  # openat2: its mode is in memory
]
for call in calls:
    said(lambda: syscall(*call))
print(marked())
