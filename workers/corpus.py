"""The training text of the lab model: what CPython's standard library says about itself.

Docstrings and comments of a fixed list of modules, which ship with every CPython from 3.11 on, so
that the model can be trained where nothing can be downloaded. It is prose about Python, as the
language reference is, which stays unseen because plans are measured on it.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from tightfit.spaces import InputError
from tightfit.workers.reading import Document

_NAMES = """
_pydecimal _pyio argparse ast asyncio base64 bdb calendar cmd code codecs codeop collections compileall
concurrent configparser contextlib copy copyreg csv ctypes dataclasses datetime difflib dis doctest email
enum filecmp fileinput fnmatch fractions ftplib functools getopt getpass gettext glob graphlib gzip
hashlib heapq hmac html http imaplib importlib inspect ipaddress json keyword linecache locale logging
lzma mailbox mimetypes modulefinder multiprocessing netrc ntpath numbers operator optparse os pdb pickle
pickletools pkgutil platform plistlib poplib posixpath pprint profile pstats py_compile pyclbr pydoc
queue quopri random re reprlib runpy sched secrets selectors shelve shlex shutil signal smtplib socket
socketserver sqlite3 ssl stat statistics string stringprep subprocess symtable sysconfig tabnanny tarfile
tempfile textwrap threading timeit token tokenize trace traceback tracemalloc types typing unittest
urllib uuid warnings wave weakref webbrowser wsgiref xml xmlrpc zipapp zipfile zipimport zoneinfo
"""

_DOCSTRING = re.compile(r"""[rRuU]?(\"{3}|'{3})""")

MODULES = tuple(_NAMES.split())
"""Modules and packages of the standard library with something to say, in every supported Python."""


def read_modules(modules: Sequence[str]) -> list[Document]:
    """Return docstrings and comments of standard-library modules, one document per source file.

    Raises:
        InputError: a module's source is not there, as in a stripped installation.
    """
    library = Path(sysconfig.get_path("stdlib"))
    documents = []
    for path in (path for module in modules for path in _sources(library, module)):
        paragraphs = _prose(path.read_text(encoding="utf-8"))
        if text := "\n\n".join(paragraphs):
            documents.append(Document(path.relative_to(library).as_posix(), text))
    return documents


def _sources(library: Path, module: str) -> list[Path]:
    single, package = library / f"{module}.py", library / module
    found = [single] if single.is_file() else sorted(package.rglob("*.py"))
    if not found:
        raise InputError(f"the lab model is trained on the standard library, but {package} has no source.")
    return found


def _prose(source: str) -> Iterator[str]:
    """Docstrings and blocks of comment lines, in the order of the source."""
    block: list[str] = []
    begins = True  # whether a string here would be a statement of its own: a docstring or its like
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.line.lstrip().startswith("#"):
            if token.type == tokenize.COMMENT:
                block.append(token.string.lstrip("#").removeprefix(" "))
            continue
        if block:
            yield "\n".join(block)
            block = []
        if begins and token.type == tokenize.STRING and _DOCSTRING.match(token.string):
            yield inspect.cleandoc(ast.literal_eval(token.string))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            begins = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
