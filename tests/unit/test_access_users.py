"""The users file: edited in place, replaced in one step, refused with the line when damaged."""
import os
import stat
import threading
from pathlib import Path

import argon2
import pytest

from fluxmq._core.errors import ConfigError
from fluxmq.access import users as users_module
from fluxmq.access.users import User, Users, add_user, list_users, remove_user

COUNT = 4_096  # SCRAM iterations: the fewest allowed, for speed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users"


def test_add_list_remove(file: Path) -> None:
    for name in ("berta", "anna", "claire@example.org"):
        add_user(file, name, f"secret of {name}", scram_iterations=COUNT)
    assert list_users(file) == ["berta", "anna", "claire@example.org"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert remove_user(file, "berta")
    assert not remove_user(file, "berta")
    users = Users.load(file)
    assert users.names() == ["anna", "claire@example.org"]
    assert len(users) == 2 and "anna" in users and "berta" not in users
    argon2.PasswordHasher().verify(users.password_hash("anna"), "secret of anna")
    assert argon2.extract_parameters(users.password_hash("anna")) == argon2.Parameters(
        argon2.Type.ID, 19, 16, 32, time_cost=2, memory_cost=19_456, parallelism=1)
    assert os.listdir(file.parent) == ["users"]


def test_a_new_password_changes_one_line(file: Path) -> None:
    add_user(file, "anna", "one", scram_iterations=COUNT)
    add_user(file, "bert", "two", scram_iterations=COUNT)
    text = file.read_text()
    commented = text.replace("\nbert", "\n\n# operators\nbert")
    file.write_text(commented)
    add_user(file, "anna", "three", scram_iterations=COUNT)
    before, after = commented.splitlines(), file.read_text().splitlines()
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True, True, True]


def test_a_link_stays_a_link(file: Path) -> None:
    target = file.parent / "kept" / "users"
    target.parent.mkdir()
    file.symlink_to(target)
    add_user(file, "anna", "one", scram_iterations=COUNT)
    assert file.is_symlink() and list_users(target) == ["anna"]


def test_editors_at_once_lose_nothing(file: Path) -> None:
    names = [f"user{index}" for index in range(8)]
    threads = [threading.Thread(target=add_user, args=(file, name, "secret"), kwargs={"scram_iterations": COUNT})
               for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(list_users(file)) == names


def test_a_failed_write_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_user(file, "anna", "one", scram_iterations=COUNT)
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(users_module.os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        add_user(file, "bert", "two", scram_iterations=COUNT)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == ["users"]


def test_the_file_is_synced_before_it_is_put_in_place(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(users_module.os, name,
                            lambda *args, _real=real, _name=name: (done.append(_name), _real(*args))[1])
    add_user(file, "anna", "one", scram_iterations=COUNT)
    assert done == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("name", ["", "a b", "#a", "a\tb", "a\nb", "x" * 256, "a\u00adb", "\u2168",
                                  "a\x7f", "a\u200bb"])
def test_names_that_cannot_be(file: Path, name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        add_user(file, name, "secret")
    assert refused.value.path == "user name"
    assert not file.exists()


@pytest.mark.parametrize("password", ["", "a\0b", "a\x07"])
def test_passwords_that_cannot_be(file: Path, password: str) -> None:
    with pytest.raises(ConfigError) as refused:
        add_user(file, "anna", password)
    assert refused.value.path == "password"


def test_a_secret_is_not_shown() -> None:
    shown = repr(User.make("anna", "secret", scram_iterations=COUNT))
    assert "anna" in shown and "argon2" not in shown and "stored_key" not in shown


def test_a_missing_file_says_how_to_make_one(file: Path) -> None:
    for use in (Users.load, list_users, lambda path: remove_user(path, "anna")):
        with pytest.raises(ConfigError, match="fluxmq user add"):
            use(file)
    with pytest.raises(ConfigError, match="directory"):
        add_user(file / "nowhere" / "users", "anna", "secret", scram_iterations=COUNT)


GOOD = str(User.make("anna", "secret", scram_iterations=COUNT))
HEAD = "fluxmq-users 1 AAAAAAAAAAAAAAAAAAAAAA=="


@pytest.mark.parametrize(("text", "line", "words"), [
    ("", 1, "fluxmq user add"),
    ("anna secret\n", 1, "not a users file"),
    ("fluxmq-users 2 AAAA\n", 1, "version 2"),
    ("fluxmq-users 1 AAAA\n", 1, "16 bytes"),
    ("fluxmq-users 1 A!AA\n", 1, "16 bytes"),
    (f"{HEAD}\n\n{GOOD}\n# again\n{GOOD}\n", 5, "already on line 3"),
    (f"{HEAD}\nanna\n", 2, "1 fields"),
    (f"{HEAD}\n{GOOD} more\n", 2, "4 fields"),
    (f"{HEAD}\n{GOOD.replace('argon2id', 'argon2i')}\n", 2, "argon2id"),
    (f"{HEAD}\n{GOOD.replace('m=19456', 'm=99999999')}\n", 2, "out of bounds"),
    (f"{HEAD}\n{GOOD.replace('t=2', 't=0')}\n", 2, "out of bounds"),
    (f"{HEAD}\n{GOOD.replace('SHA-256', 'SHA-1')}\n", 2, "SCRAM"),
    (f"{HEAD}\n{GOOD[:-20]}\n", 2, "SCRAM"),
    (f"{HEAD}\n\u2168{GOOD}\n", 2, "normal form"),
])
def test_a_damaged_file_is_told_by_line(file: Path, text: str, line: int, words: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        Users.load(file)
    assert refused.value.path == str(file)
    assert refused.value.text.startswith(f"line {line}: ") and words in refused.value.text
    if line > 1:
        with pytest.raises(ConfigError):  # and nothing is written over it
            add_user(file, "bert", "two", scram_iterations=COUNT)
        assert file.read_text() == text


def test_what_is_no_text_is_told(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        Users.load(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        Users.load(file.parent)


def test_editors_of_other_systems(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + f"{HEAD}\r\n# note\r\n{GOOD}\r\n".encode())
    assert list_users(file) == ["anna"]


def test_nobody_looks_like_the_commonest_user(file: Path) -> None:
    for name, count in (("anna", 5_000), ("bert", 5_000), ("claire", COUNT)):
        add_user(file, name, "secret", scram_iterations=count)
    users = Users.load(file)
    assert users.decoy_iterations == 5_000
    decoy = users.password_hash("nobody")
    assert argon2.extract_parameters(decoy) == argon2.extract_parameters(users.password_hash("anna"))
    assert users.scram("nobody") is None
