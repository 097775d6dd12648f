"""`python -m sigprop`: the one door from a rule, or a shell, into the package."""

from sigprop.cli.main import main

if __name__ == "__main__":
    main()
