"""What is kept is bounded by its bytes, and what was used longest ago goes first."""

from __future__ import annotations

from pytest_trainsafe.judge.compare.values import ByteLRU


def test_what_was_used_longest_ago_goes_first() -> None:
    memory = ByteLRU[str](limit=6, size=len)
    memory.keep("a", "aa")
    memory.keep("b", "bb")
    memory.keep("c", "cc")
    assert memory.get("a") == "aa"
    memory.keep("d", "d")
    assert [memory.get(key) for key in "abcd"] == ["aa", None, "cc", "d"]
    assert memory.used == 5


def test_what_is_larger_than_all_the_room_is_not_kept_and_drives_nothing_out() -> None:
    memory = ByteLRU[str](limit=3, size=len)
    memory.keep("a", "aa")
    memory.keep("b", "bbbb")
    assert [memory.get(key) for key in "ab"] == ["aa", None]


def test_a_key_counts_once_however_often_it_is_kept() -> None:
    memory = ByteLRU[str](limit=4, size=len)
    for value in ("a", "aaa", "aa"):
        memory.keep("a", value)
    assert (memory.get("a"), memory.used) == ("aa", 2)
    memory.forget("a")
    assert (memory.get("a"), memory.used) == (None, 0)
