"""Fails if too many doc comments of a folder begin with a word that hides what they are about: Of,
What, Where, By, ... The first sentence should name its subject and say what it does, so that it
can be understood without the line above.

    comments_test.py SOURCE [BUILD] [--list FOLDER]

Doc comments are blocks of /// and blocks of // directly above a declaration. --list shows those of
a folder that count. None may begin with One, Each, It, True, False, "" or -1: a value of a
variable, or a subject that the reader must look for further down.

The /// comment of a function must begin with a verb that says what the function does: "Returns", or
"Return" for several functions. "Collective:" may precede it, and a formula may replace it. The same
holds for the docstring of each Python function. Docstrings of test cases, whose names say what
holds, and of classes and files begin with their subject. In .cc files of lib, the comment directly
above a function at the margin has three slashes, so that this rule covers it.
"""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
# Percent of the doc comments of a folder (lib/NAME, apps, tests).
LIMIT = 5.0

SUFFIXES = (".h", ".cc", ".cu", ".cuh", ".inc")
FIRST = re.compile(r"(?:of|what|where|wherever|how|who|whoever|whom|whose|which|when|whenever|"
                   r"whether|if|in|into|at|on|by|for|from|to|with|"
                   r"without|as|among|between|before|after|until|unless|while|since|because|so|"
                   r"those|these|both|its|their|the same|else|"
                   r"otherwise|likewise|also|besides|beside|behind|below|above|under|over|up "
                   r"to|not|nothing|only|alone|then|thus|and|or|but|"
                   r"down|through|than|that|there|here|once|per|during|within)\b(?!\()", re.I)

VALUE = re.compile(r"(?:(?:one|each|it|true|false)\b(?!\()|\"\"|-1)", re.I)

# Words that may begin a function's comment, without plurals that only look like verbs.
VERB = re.compile(r"(?:Collective[:.] )?(?:[A-Za-z][a-z]+s|Return|Emit|Compute|Describe)\b|"
                  r"Collective\.|[\w\[\], ]{1,24}(?:\([^)]*\) )?\+?= ", 0)
NOUN = re.compile(r"(?:Bytes|Ranks|Elements|Rows|Tokens|Seconds|Steps|Units|Keys|Values|Ways|Parts|"
                  r"Lines|Errors|Bits|Products|Files|Layers|Threads|Kernels|Words|Columns|Shards|"
                  r"Pages|Weights|Types|Kinds|Facts|Pairs|Tensors|Numbers|Cores|Options|Texts|"
                  r"Events|Statistics|Panels|Lifetimes|Gradients|This|Its|Always|"
                  r"(?:Sums|Copies|Names|Sets|Places|Groups|States|Ranges|Nodes|Symbols) of)\b")
VERB_LIMIT = 1.0
FUNCTION = re.compile(r"(?:[\w:<>,&*~\[\] ]|operator\W{1,3})*[\w>~]\((?!\*)")


def function_docs(text):
    """Yields (line, comment) of each /// block above a function, a definition or declaration."""
    lines = text.split("\n")
    for line, body in blocks(text):
        if not lines[line - 1].lstrip().startswith("///"):
            continue
        at = line - 1
        while at < len(lines) and lines[at].lstrip().startswith(("//", "template", "requires")):
            at += 1
        code = lines[at].strip() if at < len(lines) else ""
        head = FUNCTION.match(code)
        if head and not re.match(r"(?:struct|class|enum|using|static_assert|mutable|"
                                 r"std::(?:function|map|vector|optional)<.*>\s+\w+[;={])\b",
                                 code) and not re.match(r"(?:const )?std::function<", code):
            yield line, body


def plain_comments(text):
    """Yields (line, code) of each // block directly above a function at the margin."""
    lines = text.split("\n")
    for at in range(1, len(lines)):
        head = FUNCTION.match(lines[at])
        if (lines[at - 1].startswith("// ") and head and re.search(r" |::", head.group())
                and not lines[at].startswith((" ", "using ", "static_assert"))):
            yield at, lines[at]


def begins_with_verb(body):
    return bool(VERB.match(body)) and not NOUN.match(body)


def blocks(text):
    """Yields (line, text) of each doc comment."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        if not lines[at].lstrip().startswith("//"):
            at += 1
            continue
        begin = at
        while at < len(lines) and lines[at].lstrip().startswith("//"):
            at += 1
        following = lines[at].strip() if at < len(lines) else ""
        is_doc = lines[begin].lstrip().startswith("///") or declares(lines[begin], following)
        body = " ".join(line.lstrip().lstrip("/!<").strip() for line in lines[begin:at]).strip()
        if is_doc and body:
            yield begin + 1, body


def declares(comment, following):
    """Returns whether the code after a // block declares something: what stands at the margin, or
    looks like a type or a function."""
    if not following or following.startswith(("}", "#", "return", "if ", "if(", "for ", "while ",
                                              "case ", "else")):
        return False
    if not comment.startswith(" "):
        return True
    return bool(re.match(r"(?:template|struct|class|enum|using|static|constexpr|inline|virtual|"
                         r"explicit)\b", following)
                or re.match(r"[\w:<>,&*\s]+\s[\w~]+\([^;]*\)\s*(?:const\s*)?(?:override\s*)?[;{]",
                            following) and "=" not in following)


def is_headless(body):
    return bool(FIRST.match(body))


def is_value(body):
    return bool(VALUE.match(body))


def folder_of(path):
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if parts[0] == "lib" else parts[0]


def counted():
    """Returns {folder: [(path, line, text, whether it begins badly)]}."""
    found = {}
    for top in ("lib", "apps", "tests"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in SUFFIXES:
                for line, body in blocks(path.read_text()):
                    found.setdefault(folder_of(path),
                                     []).append((path, line, body, is_headless(body)))
    return found


def without_verbs():
    """Returns {folder: [(path, line, text, whether it lacks its verb)]} of the functions."""
    found = {}
    for top in ("lib", "apps", "tests"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in SUFFIXES:
                for line, body in function_docs(path.read_text()):
                    found.setdefault(folder_of(path), []).append(
                        (path, line, body, not begins_with_verb(body)))
    return found


def is_test_case(function):
    """Returns whether a function's name says what its test asserts."""
    marks = {ast.unparse(mark).split("(")[0] for mark in function.decorator_list}
    return function.name.startswith("test_") or bool(marks & {"case", "waiting", "needs"})


def docstring_faults(text):
    """Yields (line, docstring) of each docstring that does not begin as it should."""
    for node in ast.walk(ast.parse(text)):
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if not is_function and not isinstance(node, (ast.ClassDef, ast.Module)):
            continue
        body = " ".join((ast.get_docstring(node) or "").split())
        if body and (is_headless(body) or is_value(body)
                     or is_function and not is_test_case(node) and not begins_with_verb(body)):
            yield getattr(node, "lineno", 1), body


def python_faults():
    """Yields (path, line, docstring) of each docstring that does not begin as it should."""
    for top in ("scripts", "tests"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for line, body in docstring_faults(path.read_text()):
                yield path, line, body


def two_slashes():
    """Yields (path, line, code) of each function of lib whose comment has two slashes."""
    for path in sorted((ROOT / "lib").rglob("*.cc")):
        for line, code in plain_comments(path.read_text()):
            yield path, line, code


def share(cells):
    return 100 * sum(cell[3] for cell in cells) / len(cells)


def self_check():
    text = ("/// Of a rank.\nint a = 0;\n\n/// Opens the file.\nvoid open();\n\n// Where it lies.\n"
            "int where();\nvoid f() {\n  // What comes next.\n  g();\n  /// The same again.\n  int "
            "x = 0;\n}\n/// Format of a header.\nint y;\n")
    assert [is_headless(body) for _, body in blocks(text)] == [True, False, True, True, False], (
        list(blocks(text)))
    starts = {"One of them.": True, "Each a line.": True, "It is over.": True, "True: it is.": True,
              "False where not.": True,
              "-1: none.": True, '"" for none.': True, "One() makes one.": False,
              "Iterates.": False, '"rank 3"': False}
    assert {start: is_value(start) for start in starts} == starts
    text = ("/// Bytes of a rank.\nint64_t bytes(int rank);\n/// The rank.\nint rank = f(1);\n"
            "/// Sums of squares.\n/// Twice.\ntemplate <class T>\nT sums();\n"
            "/// Sums the squares.\nvoid sum();\n"
            "/// y = x + 1.\nvoid add(T* y);\n/// Collective: waits.\nvoid wait() {\n")
    assert [begins_with_verb(body) for _, body in function_docs(text)] == [
        False, False, True, True, True], list(function_docs(text))
    text = ("// Sums.\nint sum(int n) {\n// Opens.\nFile::File() {\n/// Closes.\nvoid close() {\n"
            "// Rows.\nMACRO(rows)\n// A name.\nconst Name name = f();\n// A part.\n\nint g() {\n")
    assert [line for line, _ in plain_comments(text)] == [1, 3], list(plain_comments(text))
    text = ("'Of a page.'\nclass Row:\n  'A row.'\ndef f():\n  'A row.'\ndef g():\n"
            "  'Returns a row.'\ndef test_a_row_is_read():\n  'A row.'\n"
            "@case\ndef a_row_is_read():\n  'With a column.'\n")
    assert [body for _, body in docstring_faults(text)] == [
        "Of a page.", "A row.", "With a column."], list(docstring_faults(text))


def main():
    self_check()
    counts = counted()
    if "--list" in sys.argv:
        folder = sys.argv[sys.argv.index("--list") + 1]
        for path, line, body, bad in counts[folder] + without_verbs().get(folder, []):
            if bad or is_value(body):
                print(f"{path.relative_to(ROOT)}:{line}: {body[:110]}")
        return
    faults = []
    for folder, cells in sorted(counts.items()):
        bad = sum(cell[3] for cell in cells)
        print(f"{folder}: {bad} of {len(cells)} doc comments, {share(cells):.1f} %, at most "
              f"{LIMIT:.0f} %")
        if share(cells) > LIMIT:
            faults.append(f"{folder}: more than {LIMIT:.0f} % of the doc comments do not begin "
                          f"with what they are about; see them with --list {folder}")
        values = sum(is_value(body) for _, _, body, _ in cells)
        if values:
            faults.append(f"{folder}: {values} doc comments begin with One, Each, It, True, False, "
                          f"\"\" or -1; see them with --list {folder}")
    for folder, cells in sorted(without_verbs().items()):
        if share(cells) > VERB_LIMIT:
            faults.append(f"{folder}: {sum(cell[3] for cell in cells)} of {len(cells)} comments of "
                          f"functions do not begin with a verb, at most {VERB_LIMIT:.0f} %; see "
                          f"them with --list {folder}")
    faults += [f"{path.relative_to(ROOT)}:{line}: \"{body[:60]}\" does not begin with what the "
               "function does, or what it is about" for path, line, body in python_faults()]
    faults += [f"{path.relative_to(ROOT)}:{line}: the comment of a function begins with ///, not "
               f"with //: {code[:60]}" for path, line, code in two_slashes()]
    every = [cell for cells in counts.values() for cell in cells]
    print(f"all: {sum(cell[3] for cell in every)} of {len(every)}, {share(every):.1f} %")
    print("\n".join(faults))
    sys.exit(1 if faults else 0)


main()
