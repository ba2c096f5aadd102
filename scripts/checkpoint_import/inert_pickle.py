"""Reads torch.save's files without running any code in them.

A pickle is a program. This module interprets that program itself: names in it (`module class`) stay
names, and an object that Python would construct, or the result of a function that Python would
call, becomes an Inert, which has no behavior. The few constructors that stand for data
(CONSTRUCTORS) are implemented here. Neither `pickle` nor `torch` is imported, so a class of the
file need not be installed and cannot act. docs/checkpoint.md lists what is refused."""
import io
import os
import pickletools
import re
import stat
import struct
import zipfile
import zlib

import numpy as np

from script_errors import UserError
from text_files import LFS_HEAD, refuse_pointer

LARGEST_PICKLE = 256 << 20
# Modules that no checkpoint needs to name. A file that names one of them is refused, although
# reading the name runs no code.
FORBIDDEN_MODULES = re.compile(
    r"(os|posix|nt|subprocess|sys|shutil|socket|pty|runpy|importlib|ctypes|code|pdb|webbrowser|"
    r"commands|multiprocessing)(\.|$)")
FORBIDDEN_BUILTINS = {"eval", "exec", "compile", "__import__", "open", "input", "breakpoint"}


class BadFile(UserError):
    """A file that is damaged, hostile, or not what it should be."""


class Name:
    """A class or function that a pickle names: nothing but the name."""
    __slots__ = ("module", "name")

    def __init__(self, module, name):
        self.module, self.name = module, name

    def __str__(self):
        return printable(f"{self.module}.{self.name}")


class Inert:
    """An object of any class: its constructor's name, arguments and state."""
    __slots__ = ("made_by", "arguments", "state", "items")

    def __init__(self, made_by, arguments):
        self.made_by, self.arguments, self.state, self.items = made_by, arguments, None, []

    def field(self, name, default=None):
        """Returns an attribute of the object, from its pickled state."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2:  # dictionary and slots
            state = {**(state[0] or {}), **(state[1] or {})}
        return state.get(name, default) if isinstance(state, dict) else default


class Storage:
    """The bytes of one or more tensors: an entry of the zip file."""
    __slots__ = ("file", "key", "dtype", "elements")

    def __init__(self, file, key, dtype, elements):
        self.file, self.key, self.dtype, self.elements = file, key, dtype, elements


def printable(text, max_length=200):
    """Returns a text for a message, without control characters and shortened to `max_length`
    characters. For a value that is not a text, returns its type, because nested lists may be
    endless."""
    if not isinstance(text, str):
        return shown_type(text)
    shown = "".join(c if c.isprintable() else "?" for c in text[:max_length])
    return shown + ("..." if len(text) > max_length else "")


# ---- tensors ----

# {name of torch's dtype: (bytes of an element, NumPy's dtype for its bits)}
DTYPES = {"float32": (4, "<f4"), "float16": (2, "<f2"), "bfloat16": (2, "<u2"),
          "float64": (8, "<f8"),
          "int64": (8, "<i8"), "int32": (4, "<i4"), "int16": (2, "<i2"), "int8": (1, "<i1"),
          "uint8": (1, "<u1"),
          "bool": (1, "<u1")}
STORAGES = {"FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
            "DoubleStorage": "float64", "LongStorage": "int64", "IntStorage": "int32",
            "ShortStorage": "int16",
            "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
            "UntypedStorage": "uint8"}


class Tensor:
    """A tensor in the file. Its elements are read only when they are requested."""
    __slots__ = ("storage", "dtype", "shape", "offset")

    def __init__(self, storage, dtype, offset, shape, strides, location):
        self.storage, self.dtype, self.shape, self.offset = storage, dtype, shape, offset
        expected = 1
        for size, stride in zip(reversed(shape), reversed(strides)):
            if size != 1 and stride != expected and self.elements > 0:
                raise BadFile(f"{location}: holds a tensor of shape {list(shape)} whose elements "
                              f"do not lie one after another (strides {list(strides)}); save it "
                              "with .contiguous()")
            expected *= size
        size = storage.elements * DTYPES[storage.dtype][0]
        if (offset + self.elements) * DTYPES[dtype][0] > size:
            raise BadFile(f"{location}: holds a tensor of shape {list(shape)} that reaches beyond "
                          f"the {size} bytes of its storage")

    @property
    def elements(self):
        """Returns the number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    def read(self, first, last):
        """Returns elements [first, last) as they are stored."""
        if not 0 <= first <= last <= self.elements:
            raise BadFile(f"{self.storage.file.location}: elements {first} to {last} are needed of "
                          f"a tensor that has {self.elements}")
        size, kind = DTYPES[self.dtype]
        raw = self.storage.file.entry_bytes(self.storage.key, (self.offset + first) * size,
                                            (last - first) * size)
        return np.frombuffer(raw, dtype=kind)

    def read_f32(self, first, last):
        """Returns elements [first, last) in fp32."""
        values = self.read(first, last)
        if self.dtype == "bfloat16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32, copy=False)

    def number(self):
        """Returns the value of a tensor of one element."""
        value = self.read_f32(0, 1) if self.dtype == "bfloat16" else self.read(0, 1)
        return value[0].item()


def whole_numbers(values, location, what):
    """Returns a list of whole numbers as a tuple; raises an error for anything else."""
    if not isinstance(values, (tuple, list)) or len(values) > 64 or \
            any(type(v) is not int or not 0 <= v < 1 << 62 for v in values):
        raise BadFile(f"{location}: {what} of a tensor is not a list of whole numbers")
    return tuple(values)


def rebuild_tensor(arguments, location, dtype=None):
    """Rebuilds a tensor from its storage, offset, shape and strides."""
    if len(arguments) < 4 or not isinstance(arguments[0], Storage):
        raise BadFile(f"{location}: a tensor record must hold a storage, an offset, a shape and "
                      "strides")
    storage = arguments[0]
    (offset,) = whole_numbers((arguments[1],), location, "the offset")
    shape, strides = (whole_numbers(a, location, w)
                      for a, w in ((arguments[2], "the shape"), (arguments[3], "the strides")))
    if len(shape) != len(strides):
        raise BadFile(f"{location}: a tensor has {len(shape)} dimensions and {len(strides)} "
                      "strides")
    return Tensor(storage, dtype or storage.dtype, offset, shape, strides, location)


def rebuild_tensor_v3(arguments, location):
    """Rebuilds a tensor whose dtype differs from that of its storage."""
    if len(arguments) < 7:
        raise BadFile(f"{location}: a tensor record has {len(arguments)} fields, expected 7")
    return rebuild_tensor(arguments, location, dtype_of(arguments[6], location))


def dtype_of(name, location):
    """Returns the name of a dtype, such as "float32"."""
    if isinstance(name, Name) and name.module == "torch" and name.name in DTYPES:
        return name.name
    raise BadFile(f"{location}: holds a tensor of dtype {shown_type(name)}, which is not supported")


def rebuild_parameter(arguments, location):
    """Rebuilds a torch Parameter as its tensor."""
    if not arguments:
        raise BadFile(f"{location}: a torch Parameter has no tensor")
    return arguments[0]


def rebuild_from_type(arguments, location):
    """Rebuilds a tensor that has attributes. The arguments are (function, type, arguments of the
    function, attributes)."""
    if len(arguments) >= 3 and isinstance(arguments[0],
                                          Name) and isinstance(arguments[2], tuple) and \
            arguments[0].module == "torch._utils" and (
                make := CONSTRUCTORS.get(("torch._utils", arguments[0].name))):
        return make(arguments[2], location)
    raise BadFile(f"{location}: holds a tensor that is made by "
                  f"{shown_type(arguments[0] if arguments else None)}, which is not supported")


def collection_of(make):
    """Returns a constructor of collections that are made from one list."""
    def construct(arguments, location):
        if len(arguments) > 1 or (arguments
                                  and not isinstance(arguments[0], (list, tuple, set, frozenset))):
            raise BadFile(f"{location}: a {make.__name__} is made from something other than a "
                          "list")
        try:
            return make(arguments[0] if arguments else ())
        except TypeError:
            raise BadFile(
                f"{location}: a {make.__name__} holds a value that it cannot contain") from None
    return construct


def ordered_dictionary(arguments, location):
    """Constructs a dictionary from pairs of keys and values."""
    pairs = arguments[0] if arguments else ()
    if not isinstance(pairs, (list, tuple)) or any(not isinstance(p, (list, tuple)) or len(p) != 2
                                                   for p in pairs):
        raise BadFile(f"{location}: an OrderedDict is made from something other than pairs")
    return {usable_key(key, location): value for key, value in pairs}


def encoded_bytes(arguments, location):
    """Constructs bytes from a latin-1 text."""
    if len(arguments) != 2 or not isinstance(arguments[0],
                                             str) or arguments[1] not in ("latin1", "latin-1"):
        raise BadFile(f"{location}: bytes have another encoding than latin-1")
    return arguments[0].encode("latin-1", errors="replace")


def numpy_scalar(arguments, location):
    """Rebuilds numpy.core.multiarray.scalar(dtype, bytes)."""
    code = None
    if len(arguments) == 2 and isinstance(arguments[0], Inert) and isinstance(arguments[1], bytes):
        code = arguments[0].arguments[0] if arguments[0].arguments else None
        if code in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "b1"):
            kind = np.dtype("<" + code)
            if len(arguments[1]) == kind.itemsize:
                return np.frombuffer(arguments[1], dtype=kind)[0].item()
    raise BadFile(f"{location}: a NumPy scalar has an unsupported dtype or size (dtype "
                  f"{printable(code, 40)})")


# The only classes and functions of which objects are made; every other class becomes an Inert.
CONSTRUCTORS = {
    ("collections", "OrderedDict"): ordered_dictionary,
    ("collections", "defaultdict"): lambda arguments, location: {},
    ("builtins", "dict"): ordered_dictionary,
    ("builtins", "list"): collection_of(list), ("builtins", "tuple"): collection_of(tuple),
    ("builtins", "set"): collection_of(set), ("builtins", "frozenset"): collection_of(frozenset),
    ("torch", "Size"): collection_of(tuple),
    ("torch._utils", "_rebuild_tensor"): rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): rebuild_tensor_v3,
    ("torch._utils", "_rebuild_parameter"): rebuild_parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): rebuild_from_type,
    ("_codecs", "encode"): encoded_bytes,
    ("numpy.core.multiarray", "scalar"): numpy_scalar,
    ("numpy._core.multiarray", "scalar"): numpy_scalar,
}
SAME_MODULE = {"__builtin__": "builtins"}


def make_name(module, name, location):
    """Returns the Name of a class or function; raises an error if it is forbidden."""
    module = SAME_MODULE.get(module, module)
    if FORBIDDEN_MODULES.match(module) or (module == "builtins" and name in FORBIDDEN_BUILTINS):
        raise BadFile(f"{location}: names {printable(f'{module}.{name}')}, which no checkpoint "
                      "needs: the file may be an attack; no code of it was run")
    return Name(module, name)


def shown_type(value):
    """Returns the type of a value for a message; for an object that is not read, its class."""
    if isinstance(value, Inert):
        return f"an object of {value.made_by}"
    return str(value) if isinstance(value, Name) else f"a {type(value).__name__}"


# ---- the machine ----


def usable_key(key, location):
    """Returns a dictionary's key, which must be hashable: nested values are refused."""
    flat = key if type(key) is tuple else (key,)
    if all(type(k) in (str, int, float, bool, bytes, type(None), Inert, Name) for k in flat):
        return key
    raise BadFile(f"{location}: a dictionary's key is {shown_type(key)}")


class PickleMachine:
    """Interprets the opcodes of a pickle, on a stack as Python's own unpickler."""

    def __init__(self, data, location, storage=None):
        self.data, self.location, self.storage = data, location, storage
        self.stack, self.marks, self.memo = [], [], {}
        # The number of elements that constructors may still copy. A pickle spells its lists out, so
        # a larger number means that the file tries to exhaust the memory.
        self.copies_left = 16 * len(data)

    def run(self):
        """Returns the value of the pickle."""
        try:
            for opcode, argument, _ in pickletools.genops(self.data):
                if opcode.name == "STOP":
                    return self.pop()
                step = STEPS.get(opcode.name)
                if step is None:
                    raise BadFile(f"{self.location}: the pickle holds {opcode.name}, which no "
                                  "checkpoint needs")
                step(self, argument)
        except BadFile:
            raise
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError,
                UnicodeError, struct.error,
                MemoryError) as error:
            raise BadFile(
                f"{self.location}: the pickle is damaged ({printable(str(error))})") from None
        raise BadFile(f"{self.location}: the pickle has no end")

    def pop(self):
        """Takes the top value from the stack."""
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise BadFile(f"{self.location}: the pickle is damaged (it takes a value from an empty "
                          "stack)")
        return self.stack.pop()

    def pop_to_mark(self):
        """Takes all values above the last mark from the stack."""
        begin = self.marks.pop()
        items = self.stack[begin:]
        del self.stack[begin:]
        return items

    def push(self, value):
        """Puts a value on the stack."""
        self.stack.append(value)

    def construct(self, what, arguments):
        """Returns the object that a call of `what` makes: data, or an Inert."""
        if not isinstance(what, Name):
            # The callee is a method of an object, or a class that the pickle made. Neither is run.
            return Inert(Name("?", "unnamed"), arguments)
        if not isinstance(arguments, tuple):
            raise BadFile(f"{self.location}: {what} is made from {shown_type(arguments)}, expected "
                          "a tuple")
        make = CONSTRUCTORS.get((what.module, what.name))
        if make and arguments and isinstance(arguments[0], (list, tuple, set, frozenset)):
            self.copies_left -= len(arguments[0])
            if self.copies_left < 0:
                raise BadFile(f"{self.location}: the pickle copies its lists so often that it "
                              "would exhaust the memory")
        return make(arguments, self.location) if make else Inert(what, arguments)

    def extend(self, values):
        """Adds values to the list or set on top of the stack."""
        target = self.stack[-1]
        if isinstance(target, Inert):
            target.items += values
        elif isinstance(target, set):
            target.update(usable_key(v, self.location) for v in values)
        else:
            list.extend(target, values)

    def set_items(self, pairs):
        """Adds keys and values, which alternate in `pairs`, to the dictionary on top of the
        stack."""
        target = self.stack[-1]
        if isinstance(target, Inert):
            target.items.append(pairs)
            return
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            dict.__setitem__(target, usable_key(key, self.location), value)

    def build(self):
        """Sets the state of the object below the top of the stack."""
        state = self.pop()
        if isinstance(self.stack[-1], Inert):
            self.stack[-1].state = state
        # these may have attributes, which hold no data and are ignored
        elif not isinstance(self.stack[-1], (dict, Tensor, list)):
            raise BadFile(f"{self.location}: the pickle sets a state of "
                          f"{shown_type(self.stack[-1])}, which cannot have one")

    def persistent(self, what):
        """Returns the storage that a persistent id names."""
        if self.storage is None:
            raise BadFile(f"{self.location}: the pickle refers to data outside of it")
        return self.storage(what)


def _push(self, argument):
    self.push(argument)


def _constant(value):
    return lambda self, _: self.push(value)


def _remember(self, number):
    self.memo[len(self.memo) if number is None else number] = self.stack[-1]


def _reduce(self, _):
    arguments = self.pop()
    self.push(self.construct(self.pop(), arguments))


def _reduce_with_names(self, _):
    names, arguments = self.pop(), self.pop()
    value = self.construct(self.pop(), arguments)
    if isinstance(value, Inert) and isinstance(names, dict):
        value.state = names
    self.push(value)


def _from_mark(self, _):
    what, *arguments = self.pop_to_mark()
    self.push(self.construct(what, tuple(arguments)))


def _tuple(count):
    def step(self, _):
        self.push(tuple([self.pop() for _ in range(count)][::-1]))
    return step


def _dictionary(self, _):
    pairs = self.pop_to_mark()
    self.push({})
    self.set_items(pairs)


def _set_item(self, _):
    value, key = self.pop(), self.pop()
    self.set_items([key, value])


def _stack_name(self, _):
    name, module = self.pop(), self.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise BadFile(f"{self.location}: a class name is {shown_type(name)}, expected text")
    self.push(make_name(module, name, self.location))


STEPS = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda self, _: None),
    "MARK": lambda self, _: self.marks.append(len(self.stack)),
    "POP": lambda self, _: self.marks.pop() if self.marks and self.marks[-1] == len(self.stack)
    else self.pop(),
    "POP_MARK": lambda self, _: self.pop_to_mark()
    and None, "DUP": lambda self, _: self.push(self.stack[-1]),
    "NONE": _constant(None), "NEWTRUE": _constant(True), "NEWFALSE": _constant(False),
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT",
                     "BINFLOAT", "STRING",
                     "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
                     "BINUNICODE8",
                     "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"), _push),
    "EMPTY_LIST": lambda self, _: self.push([]), "EMPTY_DICT": lambda self, _: self.push({}),
    "EMPTY_SET": lambda self, _: self.push(set()), "EMPTY_TUPLE": _constant(()),
    "LIST": lambda self, _: self.push(self.pop_to_mark()), "TUPLE": lambda self, _:
    self.push(tuple(self.pop_to_mark())),
    "TUPLE1": _tuple(1), "TUPLE2": _tuple(2), "TUPLE3": _tuple(3),
    "FROZENSET": lambda self, _: self.push(frozenset(usable_key(v, self.location)
                                                     for v in self.pop_to_mark())),
    "DICT": _dictionary, "SETITEM": _set_item,
    "SETITEMS": lambda self, _: self.set_items(self.pop_to_mark()),
    "APPEND": lambda self, _: self.extend([self.pop()]), "APPENDS": lambda self, _:
    self.extend(self.pop_to_mark()),
    "ADDITEMS": lambda self, _: self.extend(self.pop_to_mark()),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"),
                    lambda self, number: self.push(self.memo[number])),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _remember),
    # The argument of GLOBAL and INST is "module name".
    "GLOBAL": lambda self, text: self.push(make_name(*text.split(" ", 1), self.location)),
    "STACK_GLOBAL": _stack_name, "REDUCE": _reduce, "NEWOBJ": _reduce,
    "NEWOBJ_EX": _reduce_with_names,
    "INST": lambda self, text: self.push(self.construct(
        make_name(*text.split(" ", 1), self.location), tuple(self.pop_to_mark()))),
    "OBJ": _from_mark, "BUILD": lambda self, _: self.build(),
    "BINPERSID": lambda self, _: self.push(self.persistent(self.pop())),
}


def read_pickle(path):
    """Returns the value of a file that is a single pickle."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise BadFile(f"{path}: is not a regular file")
        if status.st_size > LARGEST_PICKLE:
            raise BadFile(f"{path}: is {status.st_size} bytes, larger than {LARGEST_PICKLE}")
        refuse_pointer(path, os.pread(file.fileno(), len(LFS_HEAD), 0))
        return PickleMachine(file.read(LARGEST_PICKLE), path).run()


# ---- torch.save's zip files ----


class OpenFiles:
    """A cache of the descriptors of the files that were read last. A checkpoint may have more files
    than a process may hold open."""

    MAX_OPEN = 64

    def __init__(self):
        self.descriptors, self.identities = {}, {}

    def descriptor(self, path):
        """Returns a descriptor of a file; raises an error if the file was changed meanwhile."""
        if path in self.descriptors:
            self.descriptors[path] = descriptor = self.descriptors.pop(path)
            return descriptor
        if len(self.descriptors) >= self.MAX_OPEN:
            os.close(self.descriptors.pop(next(iter(self.descriptors))))
        # O_NONBLOCK lets open() return if the path is a pipe; it would wait otherwise.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise BadFile(f"{path}: is not a regular file")
        try:
            refuse_pointer(path, os.pread(descriptor, len(LFS_HEAD), 0))
        except UserError:
            os.close(descriptor)
            raise
        identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        if self.identities.setdefault(path, identity) != identity:
            os.close(descriptor)
            raise BadFile(f"{path}: was changed while it was read; import from a folder that no "
                          "other program writes to")
        self.descriptors[path] = descriptor
        return descriptor

    def close(self):
        """Closes all files."""
        while self.descriptors:
            os.close(self.descriptors.popitem()[1])
        self.identities.clear()


OPEN_FILES = OpenFiles()


class FilePart(io.RawIOBase):
    """A part of a file that can be read like a file."""

    def __init__(self, path, begin=0, length=None):
        size = os.fstat(OPEN_FILES.descriptor(path)).st_size
        if length is None:
            length = size - begin
        if begin < 0 or length < 0 or begin + length > size:
            raise BadFile(f"{path}: has {size} bytes, but bytes {begin} to {begin + length} are "
                          "needed")
        self.path, self.begin, self.length, self.position = path, begin, length, 0

    def read_at(self, offset, count):
        """Returns up to `count` bytes from an offset in this part."""
        return os.pread(OPEN_FILES.descriptor(self.path), count, self.begin + offset)

    def readinto(self, buffer):
        """Reads into a buffer, as RawIOBase.readinto."""
        data = self.read_at(self.position,
                            max(0, min(len(buffer), self.length - self.position)))
        buffer[:len(data)] = data
        self.position += len(data)
        return len(data)

    def seek(self, offset, whence=os.SEEK_SET):
        """Moves the position, as RawIOBase.seek."""
        self.position = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.position,
                                         os.SEEK_END: self.length}[whence])
        return self.position

    def tell(self):
        """Returns the position."""
        return self.position

    def seekable(self):
        """Returns True."""
        return True

    def readable(self):
        """Returns True."""
        return True


class TorchFile:
    """A file of torch.save, or a part of a file that contains one. Entries are read in place:
    nothing is unpacked, and no name in the file is used as a path."""

    # Set to False to read files that were saved with torch.serialization.set_crc32_options(False).
    check_sums = True

    def __init__(self, path, begin=0, length=None):
        self.location = path if begin == 0 and length is None else f"{path} (at byte {begin})"
        self.part = FilePart(path, begin, length)
        self.entries = self._entries()
        self.checked = set()

    def _entries(self):
        """Returns (offset, bytes, CRC) of each entry, by its name below the archive's one
        folder."""
        try:
            with zipfile.ZipFile(self.part) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, ValueError, struct.error, OSError, NotImplementedError,
                EOFError) as error:
            start = self.part.read_at(0, 2)
            if start[:1] == b"\x80":
                raise BadFile(f"{self.location}: is a plain pickle, as torch saved before 1.6; "
                              "load and save it again with a newer torch") from None
            raise BadFile(f"{self.location}: is not a complete zip file of torch.save "
                          f"({printable(str(error))}); it may have been cut short") from None
        entries = {}
        for info in infos:
            top, _, name = info.filename.partition("/")
            parts = info.filename.split("/")
            if (not top or not name or ".." in parts or "." in parts or "" in parts[:-1]
                or "\\" in info.filename):
                raise BadFile(f"{self.location}: the zip entry {printable(info.filename)!r} is not "
                              "named as torch names them")
            if name in entries:
                raise BadFile(f"{self.location}: the zip entry {printable(name)!r} occurs twice")
            entries[name] = self._locate(info)
        if "data.pkl" not in entries:
            raise BadFile(f"{self.location}: holds no data.pkl, so torch.save did not write it")
        return entries

    def _locate(self, info):
        """Returns (offset, bytes, CRC) of an entry; raises an error if it does not fit the
        file."""
        name = printable(info.filename)
        if (info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size
            or info.flag_bits & 1):
            raise BadFile(f"{self.location}: the zip entry {name!r} is compressed or encrypted; "
                          "torch.save does neither")
        head = self.part.read_at(info.header_offset, 30) if info.header_offset >= 0 else b""
        if len(head) != 30 or head[:4] != b"PK\3\4":
            raise BadFile(f"{self.location}: the zip entry {name!r} is not at the offset that the "
                          "file's directory names")
        begin = info.header_offset + 30 + sum(struct.unpack("<HH", head[26:30]))
        if begin + info.file_size > self.part.length:
            raise BadFile(f"{self.location}: the zip entry {name!r} of {info.file_size} bytes "
                          f"reaches beyond the file's {self.part.length}")
        return begin, info.file_size, info.CRC

    def entry_bytes(self, name, offset, count):
        """Returns bytes of an entry, after its checksum was compared."""
        begin, size, crc = self.entries[name]
        if offset < 0 or count < 0 or offset + count > size:
            raise BadFile(f"{self.location}: bytes {offset} to {offset + count} of the zip entry "
                          f"{printable(name)!r} are needed, which has {size}")
        self._check(name, begin, size, crc)
        data = self.part.read_at(begin + offset, count)
        if len(data) != count:
            raise BadFile(f"{self.location}: became shorter while it was read")
        return data

    def _check(self, name, begin, size, crc):
        """Checks the checksum of an entry at its first use, reading it piece by piece."""
        if name in self.checked or not self.check_sums:
            return
        actual = 0
        for at in range(0, size, 1 << 22):
            actual = zlib.crc32(self.part.read_at(begin + at, min(1 << 22, size - at)), actual)
        if actual != crc:
            raise BadFile(f"{self.location}: the zip entry {printable(name)!r} has the checksum "
                          f"{actual:08x}, but the file's directory names {crc:08x}: the entry is "
                          "damaged, or was saved without checksums (--ignore-crc)")
        self.checked.add(name)

    def _storage(self, what):
        """Returns the storage that BINPERSID names: ("storage", class, key, device, elements)."""
        if not isinstance(what,
                          tuple) or len(what) != 5 or what[0] != "storage" or not isinstance(
                              what[1], Name) \
                or not isinstance(what[2],
                                  str) or type(what[4]) is not int or not 0 <= what[4] < 1 << 60:
            raise BadFile(f"{self.location}: a persistent id does not name a tensor storage")
        kind = STORAGES.get(what[1].name) if what[1].module in ("torch", "torch.storage") else None
        if kind is None:
            raise BadFile(f"{self.location}: holds a storage of class {what[1]}, which is not "
                          "supported")
        entry = f"data/{what[2]}"
        if entry not in self.entries:
            raise BadFile(f"{self.location}: refers to the storage {printable(what[2])!r}, which "
                          "does not exist")
        size = self.entries[entry][1]
        if what[4] * DTYPES[kind][0] > size:
            raise BadFile(f"{self.location}: the storage {printable(what[2])!r} has {size} bytes, "
                          f"but {what[4]} elements of {kind} need more")
        return Storage(self, entry, kind, what[4])

    def value(self):
        """Returns the saved value; its tensors refer to this file."""
        order = self.entries.get("byteorder")
        if order and self.entry_bytes("byteorder", 0, order[1]) != b"little":
            raise BadFile(f"{self.location}: was saved on a machine of another byte order")
        size = self.entries["data.pkl"][1]
        if size > LARGEST_PICKLE:
            raise BadFile(f"{self.location}: its data.pkl is {size} bytes, larger than "
                          f"{LARGEST_PICKLE}")
        data = self.entry_bytes("data.pkl", 0, size)
        return PickleMachine(data, self.location, self._storage).run()
