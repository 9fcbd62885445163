"""Numbers as people type them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dplinked.errors import StudyError
from dplinked.study.typed import read_number, write_number


@pytest.mark.parametrize(
    ("typed", "number"),
    [
        ("2.5", 2.5),
        ("2,5", 2.5),
        (" 150000,5 ", 150000.5),
        ("0,918", 0.918),
        ("0.918", 0.918),
        ("120", 120),
        ("120,0", 120.0),
        ("1.2345", 1.2345),
        ("1234,567", 1234.567),
        ("1e-6", 1e-6),
        ("1,234e5", 123400.0),
        ("-3,25", -3.25),
        ("\N{MINUS SIGN}3", -3),
        (",5", 0.5),
        ("5.", 5.0),
    ],
)
def test_points_and_commas_are_read_alike(typed: str, number: float) -> None:
    read = read_number(typed)
    assert read == number
    assert type(read) is type(number)


@pytest.mark.parametrize(
    ("typed", "ways"),
    [
        ("120.000", "write 120000 or 120.0000"),
        ("1,000", "write 1000 or 1.0000"),
        ("-12.345", "write -12345 or -12.3450"),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(typed: str, ways: str) -> None:
    with pytest.raises(StudyError, match=re.escape(ways)):
        read_number(typed)
    for way in ways.removeprefix("write ").split(" or "):
        assert read_number(way) is not None


@pytest.mark.parametrize("typed", ["", "x", "1.000.000", "1.000,5", "1 000", "nan", "inf", "1e999", "1_000", "2..5"])
def test_what_is_no_number_is_refused(typed: str) -> None:
    with pytest.raises(StudyError, match=r"no number|too large"):
        read_number(typed)


@given(st.one_of(st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_are_read_as_they_are_written(number: float) -> None:
    assert read_number(write_number(number)) == number
    assert read_number(write_number(number).replace(".", ",")) == number
