"""`python -m twinvec`, which is also what torchrun starts: torchrun --nproc-per-node 2 -m twinvec train recipe.toml."""

from twinvec.cli.main import main

if __name__ == "__main__":
    main()
