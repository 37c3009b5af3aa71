import string

import pytest

from pww.data.pydocs import PythonDocs
from pww.data.sources import documents
from pww.errors import DataError

MODULE = '''
"""About  it.

    Indented.
    """

def plain(): "no text lost"

class Outer:
    """The class."""

    async def method(self):
        """The method."""
        def inner():
            """Inside."""

    def silent(self):
        return "not a docstring"

if True:
    try:
        pass
    except ValueError:
        def late():
            """Late."""
'''


@pytest.fixture
def library(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("pydoc_data/topics.py", "# made\ntopics = {'b': 'second', 'a': 'first'}\n")
    write("pydoc_data/__init__.py", "")
    write("zeta.py", MODULE)
    write("alpha/__init__.py", '"""Package."""')
    write("test/hidden.py", '"""A test."""')
    write("site-packages/other.py", '"""Installed later."""')
    write("template.py", "def {name}(: broken")
    return tmp_path


def test_topics_come_first_then_modules_by_name(library):
    assert list(documents(PythonDocs(library))) == [
        "a\n\nfirst\n",
        "b\n\nsecond\n",
        "alpha.__init__\n\nPackage.\n",
        "zeta\n\nAbout  it.\n\nIndented.\n"
        "\nzeta.plain\n\nno text lost\n"
        "\nzeta.Outer\n\nThe class.\n"
        "\nzeta.Outer.method\n\nThe method.\n"
        "\nzeta.Outer.method.inner\n\nInside.\n"
        "\nzeta.late\n\nLate.\n",
    ]


def test_a_docstring_with_half_a_character_spells_it(library):
    (library / "zeta.py").write_text(r'"""Half: \ud800."""')
    assert list(documents(PythonDocs(library)))[-1] == "zeta\n\nHalf: \\ud800.\n"


def test_a_topics_file_without_topics_gives_none(library):
    (library / "pydoc_data/topics.py").write_text("x = 1\n")
    assert next(documents(PythonDocs(library))).startswith("alpha")


def test_the_fingerprint_follows_names_and_bytes(library):
    first = PythonDocs(library).fingerprint()
    assert PythonDocs(library).fingerprint() == first
    (library / "test/hidden.py").write_text("")
    assert PythonDocs(library).fingerprint() == first
    (library / "zeta.py").rename(library / "omega.py")
    assert PythonDocs(library).fingerprint() != first
    (library / "omega.py").rename(library / "zeta.py")
    (library / "zeta.py").write_text("")
    assert PythonDocs(library).fingerprint() != first


def test_a_library_without_source_is_refused(tmp_path):
    with pytest.raises(
        DataError, match=r"no Python source in .*, so data.kind=pydocs has no text; use"
    ):
        PythonDocs(tmp_path).fingerprint()


def test_a_source_that_cannot_be_read_is_refused(library):
    docs = PythonDocs(library)
    docs.fingerprint()
    (library / "zeta.py").unlink()
    with pytest.raises(
        DataError, match=r"cannot read .*zeta.py: No such file.*; use another corpus"
    ):
        list(documents(docs))


def test_the_installed_python_documents_itself():
    docs = list(documents(PythonDocs()))
    size = sum(map(len, docs))
    assert 1_000_000 < size < 5_000_000
    assert any(doc.startswith("json.__init__\n") and "json.__init__.dumps" in doc for doc in docs)
    assert any(doc.startswith("assert\n") for doc in docs)
    letters = sum(char in string.ascii_lowercase + " \n" for doc in docs for char in doc)
    assert letters > 0.75 * size
