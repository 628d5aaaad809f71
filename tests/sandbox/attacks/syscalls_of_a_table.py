# Makes each system call that opens more of the kernel than code needs, by its number.
# Each is refused; nothing of it reaches the kernel.
#: machine=x86_64
# %% prints
# > DONE
print(said(lambda: syscall(39)))
# %% prints
# > []
forbidden = {
    "ptrace": 101,
    "syslog": 103,
    "setuid": 105,
    "setreuid": 113,
    "setgroups": 116,
    "capset": 126,
    "mknod": 133,
    "uselib": 134,
    "ustat": 136,
    "sysfs": 139,
    "vhangup": 153,
    "modify_ldt": 154,
    "pivot_root": 155,
    "adjtimex": 159,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "setxattr": 188,
    "removexattr": 197,
    "io_setup": 206,
    "remap_file_pages": 216,
    "clock_settime": 227,
    "mbind": 237,
    "set_mempolicy": 238,
    "get_mempolicy": 239,
    "mq_open": 240,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "migrate_pages": 256,
    "mknodat": 259,
    "unshare": 272,
    "vmsplice": 278,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "fanotify_mark": 301,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "seccomp": 317,
    "memfd_create": 319,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "fsopen": 430,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "landlock_create_ruleset": 444,
    "landlock_restrict_self": 446,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "set_mempolicy_home_node": 450,
    "cachestat": 451,
    "map_shadow_stack": 453,
    "lsm_set_self_attr": 460,
    "unknown": 470,
}
print(
    [
        name
        for name, number in forbidden.items()
        if said(lambda: syscall(number, 0, 0, 0, 0, 0, 0)) not in ("EPERM", "ENOSYS")
    ]
)
# %% prints
# > []
wide = [0x40000000 + number for number in range(0, 548)]
print([number for number in wide if said(lambda: syscall(number, 0, 0, 0, 0, 0, 0)) != "EPERM"])
# %% prints
# > {'ENOSYS'}
print({said(lambda: syscall(number, 0, 0, 0, 0, 0, 0)) for number in range(470, 3000)})
