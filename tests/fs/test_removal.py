"""Whole directories are removed without ever leaving the root, whatever links stand in the way."""
import os
from contextlib import suppress

import pytest

from seglog.errors import StorageError
from seglog.fs.files import OsFileSystem
from seglog.fs.removal import remove_file, remove_files, remove_tree
from seglog.fs.scratch import scratch_directory
from support.descriptors import descriptors_of

FS = OsFileSystem()


@pytest.fixture
def precious(tmp_path):
    """A directory of somebody else."""
    path = tmp_path / "precious"
    (path / "a/b").mkdir(parents=True)
    for name in ("file", "a/file", "a/b/file"):
        (path / name).write_bytes(b"precious")
    return path


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "root"
    (path / "tree/below").mkdir(parents=True)
    for name in ("tree/1", "tree/below/2", "stays"):
        (path / name).touch()
    return path


def is_whole(precious):
    return all((precious / name).read_bytes() == b"precious" for name in ("file", "a/file", "a/b/file"))


def test_a_tree_is_removed_and_what_is_beside_it_stays(root):
    remove_tree(FS, root, "tree", "below")
    assert sorted(os.listdir(root / "tree")) == ["1"]
    remove_tree(FS, root, "tree")
    assert os.listdir(root) == ["stays"]


def test_what_is_gone_is_fine(root):
    remove_tree(FS, root, "none")
    remove_tree(FS, root, "none", "below")
    remove_tree(FS, root / "none", "below")
    remove_file(FS, root, "none", "file")
    remove_files(FS, root / "none", lambda name: True)
    assert sorted(os.listdir(root)) == ["stays", "tree"]


@pytest.mark.parametrize("name", ["", ".", "..", "../root", "tree/below", "/tree"])
def test_only_names_are_taken(root, name):
    with pytest.raises(ValueError, match="not the names"):
        remove_tree(FS, root, "tree", name)
    assert (root / "tree/below/2").exists()


def test_a_link_is_removed_itself(root, precious):
    (root / "link").symlink_to(precious)
    (root / "tree/below/link").symlink_to(precious / "a")
    remove_tree(FS, root, "link")
    remove_tree(FS, root, "tree")
    assert os.listdir(root) == ["stays"]
    assert is_whole(precious)


def test_nothing_behind_a_link_on_the_way_is_removed(root, precious):
    (root / "link").symlink_to(precious)
    for remove, name in ((remove_tree, "a"), (remove_tree, "file"), (remove_file, "file")):
        with pytest.raises(StorageError, match="cannot remove what is below it: not a directory, or a symbolic link"):
            remove(FS, root, "link", name)
    assert is_whole(precious)


def test_the_root_may_be_behind_a_link(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    remove_tree(FS, tmp_path / "link", "tree")
    assert os.listdir(root) == ["stays"]


class Exchanges(OsFileSystem):
    """Puts a link in the place of `victim` as soon as the first name is removed."""

    def __init__(self, victim, leads_to):
        self.victim, self.leads_to = victim, leads_to
        self.is_done = False

    def unlink(self, path, within=None):
        if not self.is_done:
            self.is_done = True
            self.victim.rename(self.victim.with_name("moved"))
            self.victim.symlink_to(self.leads_to)
        super().unlink(path, within)


@pytest.mark.parametrize("victim", ["tree", "tree/z", "tree/below"])
def test_a_link_that_takes_a_name_during_the_removal_is_not_followed(root, precious, victim):
    """`below` is removed first; then `z`, which was listed as a directory, and the rest."""
    (root / "tree/z/b").mkdir(parents=True)
    (root / "tree/z/file").touch()
    # What was moved away is still there, so the directory cannot go.
    with suppress(StorageError):
        remove_tree(Exchanges(root / victim, precious / "a"), root, "tree")
    assert is_whole(precious)


def test_chosen_files_are_removed_but_not_behind_links(root, precious):
    (root / "tree/link").symlink_to(precious)
    (root / "tree/2").symlink_to(precious / "file")
    remove_files(FS, root, lambda name: name in ("1", "2", "file"))
    assert sorted(os.listdir(root / "tree")) == ["below", "link"]
    assert os.listdir(root / "tree/below") == []
    assert is_whole(precious)


def test_a_tree_that_is_too_deep_is_an_error_of_storage(root):
    path = root / "tree"
    for _ in range(70):
        path /= "d"
        path.mkdir()
    with pytest.raises(StorageError, match="64 directories inside each other"):
        remove_tree(FS, root, "tree")


def test_no_descriptor_is_left_open(root, precious):
    (root / "link").symlink_to(precious)
    with pytest.raises(StorageError):
        remove_tree(FS, root, "link", "a", "b")
    remove_tree(FS, root, "tree", "none", "below")
    remove_tree(FS, root, "tree")
    assert descriptors_of(root.parent) == 0


def test_a_scratch_directory_is_removed_without_what_its_links_lead_to(tmp_path, precious):
    with scratch_directory(tmp_path) as path:
        (path / "link").symlink_to(precious)
        (path / "below").mkdir()
    assert not path.exists()
    assert is_whole(precious)
