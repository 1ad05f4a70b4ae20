# SPDX-License-Identifier: MIT
"""Figures of a model that libtorch runs, for tests in Python; unit/verify/golden_rows_test.cpp says why they move and where bounds come from."""


def check(case, name, seen, expected, bound):
    """Prints "figure: NAME SEEN", and fails if it is not within `bound` of what is expected."""
    print(f"figure: {name} {seen:.9g}")
    case.assertLessEqual(abs(seen - expected), bound, f"{name} is {seen}, expected {expected}")
