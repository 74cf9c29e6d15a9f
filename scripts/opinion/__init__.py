"""The parts of scripts/second_opinion.py; they share no code with the attnbench program."""
