#!/usr/bin/env python3
"""Sources with many mutants at once: without a number they do what the original does, with one what
that mutant does."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import mutant_choice

SOURCE = r"""
#include <cstdio>
constexpr int kConstant = 7;
static int twice(int x) {
  const char* text = "} else {";  // a brace { in a comment
  if (x > 3) {
    return text[0] == '}' ? x + x : 0;
  }
  return 2 * x;
}
static int sum(int n) {
  int total = 0;
  for (int i = 0; i < n; ++i) {
    if (i == 2) continue;
    total += twice(i);
  }
  switch (n) {
    case 1: total += 100; break;
    default: break;
  }
  const auto add = [&](int x) -> int { return total + x; };
  const int values[] = {1, 2, 3};
  return add(values[2]);
}
int main() { std::printf("%d %d\n", sum(6) + sum(1), kConstant); }
"""
MUTANTS = [
    ("x + x", "x - x"),
    ("if (i == 2) continue;", "if (i == 3) break;"),
    ("total += twice(i);", "total += i;"),
    ("return 2 * x;", "return 3 * x;"),
    ("int total = 0;", "int total = 1000;"),
    ("return total + x;", "return x;"),
    ("{1, 2, 3}", "{1, 2, 30}"),
    ("kConstant = 7", "kConstant = 8"),
    ("total += 100; break;", "total += 200; break;"),
]


def output_of(text, number=None):
    with tempfile.TemporaryDirectory() as scratch:
        source, program = pathlib.Path(scratch, "a.cpp"), pathlib.Path(scratch, "a")
        source.write_text(text)
        subprocess.run(["c++", "-std=c++20", "-w", source, "-o", program], check=True)
        environment = dict(os.environ)
        environment.pop(mutant_choice.VARIABLE, None)
        if number is not None:
            environment[mutant_choice.VARIABLE] = str(number)
        return subprocess.run([program], env=environment, capture_output=True, text=True).stdout


@unittest.skipUnless(shutil.which("c++"), "no c++")
class Choices(unittest.TestCase):
    def test_each_number_gives_what_its_mutant_alone_gives_and_no_number_the_original(self):
        mutants = [(10 + i, *mutant) for i, mutant in enumerate(MUTANTS)]
        text, chosen = mutant_choice.with_choices(SOURCE, mutants)
        self.assertEqual(output_of(text), output_of(SOURCE))
        self.assertEqual(output_of(text, 99), output_of(SOURCE))
        for index, number in chosen.items():
            find, replace = MUTANTS[index]
            expected = output_of(SOURCE.replace(find, replace))
            self.assertNotEqual(expected, output_of(SOURCE), find)
            self.assertEqual(output_of(text, number), expected, find)

    def test_all_but_what_is_in_no_block_can_be_chosen(self):
        _, chosen = mutant_choice.with_choices(SOURCE, [(1, *mutant) for mutant in MUTANTS])
        self.assertEqual([MUTANTS[i][0] for i in range(len(MUTANTS)) if i not in chosen],
                         ["kConstant = 7"])  # fmt: skip

    def test_a_text_that_closes_a_block_cannot_be_chosen(self):
        self.assertEqual(mutant_choice.with_choices(SOURCE, [(1, "return 2 * x;", "return 1; }")])[1], {})


if __name__ == "__main__":
    unittest.main()
