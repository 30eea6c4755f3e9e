"""Runs a program that a test holds as text; see Recording.run_script."""
import sys


def main():
    program = sys.argv.pop(1)
    exec(program, {"__name__": "__main__"})
