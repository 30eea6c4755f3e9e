"""`python -m seglog.tools`: the same as `seglog`, if the console script is not on the path."""
from .start import main

main()
