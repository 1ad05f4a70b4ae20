# SPDX-License-Identifier: MIT
"""Figures of a model that libtorch runs, for tests in Python; figures.hpp says why they move and where bounds come from."""
import os


def check(case, name, seen, expected, bound):
    """Prints "figure: NAME SEEN", and fails if it is not within `bound` of what is expected. Nothing is compared where
    $OSCAR_TEST_BOUNDS is "off"."""
    print(f"figure: {name} {seen:.9g}")
    if os.environ.get("OSCAR_TEST_BOUNDS") != "off":
        case.assertLessEqual(abs(seen - expected), bound, f"{name} is {seen}, expected {expected}")
