"""Runs a command to which the kernel refuses the calls that network and FUSE file systems lack,
whatever the actual file system supports: refused_calls.py COMMAND ARGUMENT... (x86-64)"""
import ctypes
import errno
import fcntl
import mmap
import os
import struct
import sys

# (number of the call, its error, ((argument, mask, value), ...)): refused if all conditions hold.
REFUSED = (
    (316, errno.EINVAL, ()),  # renameat2
    (285, errno.EOPNOTSUPP, ()),  # fallocate
    (73, errno.ENOLCK, ()),  # flock
    (257, errno.EINVAL, ((2, os.O_DIRECT, os.O_DIRECT),)),  # openat
    (72, errno.EINVAL, ((1, 0xffffffff, fcntl.F_SETFL), (2, os.O_DIRECT, os.O_DIRECT))),
    (9, errno.ENODEV, ((2, mmap.PROT_WRITE, 0), (3, mmap.MAP_SHARED, mmap.MAP_SHARED))),
)
LOAD, AND, EQUAL, RETURN = 0x20, 0x54, 0x15, 0x06  # BPF opcodes
CALL, FIRST_ARGUMENT = 0, 16  # offsets in struct seccomp_data
ALLOW, ERROR = 0x7fff0000, 0x00050000
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2


def instruction(code, value, otherwise=0):
    """Encodes an instruction; `otherwise` is the number of instructions to skip if a comparison is
    false."""
    return struct.pack("=HBBI", code, 0, otherwise, value)


def program():
    lines = []
    for call, error, conditions in REFUSED:
        size = 3 + 3 * len(conditions)
        lines += [instruction(LOAD, CALL), instruction(EQUAL, call, size - 2)]
        for number, (argument, mask, value) in enumerate(conditions):
            lines += [instruction(LOAD, FIRST_ARGUMENT + 8 * argument), instruction(AND, mask),
                      instruction(EQUAL, value, size - 5 - 3 * number)]
        lines.append(instruction(RETURN, ERROR | error))
    return [*lines, instruction(RETURN, ALLOW)]


def refuse_from_now_on():
    lines = program()
    code = ctypes.create_string_buffer(b"".join(lines))
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    arguments = [(NO_NEW_PRIVILEGES, 1, 0), (SECCOMP, FILTER, ctypes.addressof(filters))]
    if any(prctl(*map(ctypes.c_ulong, (*some, 0, 0))) != 0 for some in arguments):
        sys.exit(f"refused_calls.py: {os.strerror(ctypes.get_errno())}")


refuse_from_now_on()
os.execv(sys.argv[1], sys.argv[1:])
