# Changes what is mounted, and what is its root.
# Each is refused.
# %% prints
# 3> False
# > True
print(os.statvfs("/usr").f_flag & os.ST_RDONLY == 1 and os.statvfs("/workspace").f_flag & os.ST_RDONLY == 0)
# %% prints
# > []
calls = {
    "x86_64": {
        "mount": 165,
        "umount2": 166,
        "pivot_root": 155,
        "chroot": 161,
        "open_by_handle_at": 304,
        "name_to_handle_at": 303,
        "unshare": 272,
        "setns": 308,
        "swapon": 167,
        "mknod": 133,
        "mknodat": 259,
    },
    "aarch64": {
        "mount": 40,
        "umount2": 39,
        "pivot_root": 41,
        "chroot": 51,
        "open_by_handle_at": 265,
        "name_to_handle_at": 264,
        "unshare": 97,
        "setns": 268,
        "swapon": 224,
        "mknodat": 33,
    },
}[os.uname().machine]
newer = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "statmount": 457,
    "listmount": 458,
}
here = ctypes.c_char_p(b"/workspace")
print(
    [
        name
        for name, number in (calls | newer).items()
        if said(lambda: syscall(number, here, here, 0, 4096, 0)) not in ("EPERM", "ENOSYS")
    ]
)
# %% prints
# > []
print(
    [
        each
        for each in ("/usr", "/opt/python", "/opt/treadle", "/etc", "/dev", "/bin", "/lib")
        if said(lambda: open(each + "/planted", "w")) == "DONE"
        or said(lambda: os.mkdir(each + "/planted")) == "DONE"
    ]
)
# %% prints
# > ['EACCES']
print(sorted({said(lambda: os.mkdir(each)) for each in ("/planted", "/run/planted")}))
